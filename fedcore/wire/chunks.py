"""Chunks of an upload, and the digest of the whole update.

An update goes up in parts of `PART_BYTES`; only the last may be shorter. So the next part is masked and hashed while
the ones before it are on the line, and a connection that breaks costs no more than the parts that it carried. The
digest of the whole follows from those of the parts, which are at hand on both sides: nobody hashes a byte twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

UPDATE_TAG: Final = "fedcore/update/v2"
"""Raised with whatever changes the digest of an update."""
PART_BYTES: Final = 4 << 20
"""Divides the 64 MiB chunks of the mask stream, and holds whole 64-bit words."""
PARTS_IN_FLIGHT: Final = 2
"""Parts of one client on their way at once: one waits for its answer, the other has the line. A break costs both."""
_BLOCK_BYTES: Final = 1 << 20
_FIRST_PART_BYTES: Final = 8 << 20
_FIRST_TAG: Final = "fedcore/update/v1"
"""Those of fedcore 0.2.0, whose replies may lie at a server."""


def part_count(size: int) -> int:
    """How many parts an update of `size` bytes has."""
    return -(-size // PART_BYTES)


def part_size(size: int, index: int) -> int:
    """Bytes of part `index` (from 0) of an update of `size` bytes; 0 if there is no such part."""
    return max(0, min(PART_BYTES, size - index * PART_BYTES)) if index >= 0 else 0


def update_digest(size: int, parts: Iterable[bytes]) -> bytes:
    """The digest of an update of `size` bytes, 32 bytes: SHA-256 over its size and its parts' SHA-256, in order.

    The size fixes where each part begins, and each digest has 32 bytes, so no two updates are hashed as the same text.
    """
    return _digest(UPDATE_TAG, size, parts)


def file_digest(path: Path) -> bytes:
    """The digest of the update that a file holds, read block by block: `update_digest` of its size and its parts.

    Raises OSError.
    """
    return _file_digest(path, UPDATE_TAG, PART_BYTES)


def first_file_digest(path: Path) -> bytes:
    """As `file_digest`, as fedcore 0.2.0 computed it; raises OSError."""
    return _file_digest(path, _FIRST_TAG, _FIRST_PART_BYTES)


def _file_digest(path: Path, tag: str, part: int) -> bytes:
    with path.open("rb") as file:
        parts = list(_part_digests(file, part))
        return _digest(tag, file.tell(), parts)


def _digest(tag: str, size: int, parts: Iterable[bytes]) -> bytes:
    return hashlib.sha256(tag.encode() + b"\x00" + size.to_bytes(8, "little") + b"".join(parts)).digest()


def _part_digests(file: BinaryIO, part: int) -> Iterator[bytes]:
    """The SHA-256 of each part of a file, up to its end."""
    while block := file.read(_BLOCK_BYTES):
        digest, left = hashlib.sha256(block), part - len(block)
        while left and (block := file.read(min(_BLOCK_BYTES, left))):
            digest.update(block)
            left -= len(block)
        yield digest.digest()
