"""Safetensors files that are deterministic, atomic and read through a memory map.

File layout, which makes the bytes a function of the state alone:

- the header names the tensors in the order of the state (the order in which Flower lists arrays), has `__metadata__` in
  record files and in the models that a run ends with (`facts`), and is padded with spaces to a multiple of eight bytes;
- the data lies in descending item size, equal sizes in the order of the state, so that every
  tensor is aligned.

Format: https://huggingface.co/docs/safetensors, section "Format".
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedcore.errors import PeerError, UsageError
from fedcore.state.layout import Layout, TensorSpec
from fedcore.system.files import full_disk_named, replacing

_WRITE_CHUNK = 1 << 22


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in lower-case hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_tensors(
    layout: Layout,
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    *,
    release: Callable[[], None] = lambda: None,
) -> str:
    """SHA-256 of the file that these tensors of `layout` would be written to, in lower-case hexadecimal.

    Args:
        release: called now and then, to give back the memory of what was read.
    """
    header, _ = _make_header(layout, metadata)
    digest = hashlib.sha256(header)
    for spec in _in_file(layout):
        flat = np.ascontiguousarray(tensors[spec.name]).reshape(-1).view(np.uint8)
        for start in range(0, flat.size, _WRITE_CHUNK):
            digest.update(flat[start : start + _WRITE_CHUNK].data)
            release()
    return digest.hexdigest()


def read_header(path: Path) -> tuple[Layout, dict[str, int], dict[str, str]]:
    """The layout of a file, in the order of its header, the offset of each tensor in bytes, and `read_metadata`.

    The safetensors library checks the structure first (lengths, gaps, overlaps, a file that is too
    short or too long), so that what is parsed here is known to be consistent.

    Raises PeerError for a malformed file, EncodingError for a dtype that is not supported, OSError
    for a file that cannot be opened.
    """
    table, length = _read_table(path)
    metadata: dict[str, str] = table.pop("__metadata__", None) or {}
    specs = tuple(
        TensorSpec(name=name, dtype=entry["dtype"], shape=tuple(entry["shape"])) for name, entry in table.items()
    )
    offsets = {name: 8 + length + entry["data_offsets"][0] for name, entry in table.items()}
    return Layout(specs=specs), offsets, metadata


def header_of(layout: Layout) -> bytes:
    """The first bytes of the file to which a state of `layout` is written, up to its tensors."""
    return _make_header(layout, None)[0]


def read_metadata(path: Path) -> dict[str, str]:
    """What the file says in addition to its tensors; raises as `read_header`."""
    table, _ = _read_table(path)
    metadata: dict[str, str] = table.get("__metadata__") or {}
    return metadata


def _read_table(path: Path) -> tuple[dict[str, Any], int]:
    """The header of an intact file, and its length in bytes."""
    with path.open("rb"):
        pass  # the library's own errors do not say what is wrong with a file that cannot be opened
    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        # The library's text quotes the header, which a peer wrote: keep only its general part.
        reason = str(error).split(":")[0]
        raise PeerError(f"{path.name} is not an intact safetensors file ({reason})") from None
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length), object_pairs_hook=_unique_keys), length


def file_size(layout: Layout, metadata: Mapping[str, str]) -> int:
    """Bytes of the file that a state of `layout` would be written to."""
    header, _ = _make_header(layout, metadata)
    return len(header) + layout.nbytes


class FileSink:
    """Writes a safetensors file block by block; it is in place, and `durable` if asked, when the context ends.

    The bytes go to a temporary file in the same folder; an exception inside the context removes it
    and leaves a file that was at `path` as it was. These are plain writes and not a writable map,
    because a full disk then shows as an error and not as a signal that ends the process.

    Several threads may write at once. Raises StorageFull when the disk is full, UsageError when a
    part of the state is not written.
    """

    def __init__(
        self, path: Path, layout: Layout, metadata: Mapping[str, str] | None = None, *, durable: bool = True
    ) -> None:
        self._path = path
        self._durable = durable
        self._counting = threading.Lock()
        self._header, self._offsets = _make_header(layout, metadata)
        self._missing = layout.nbytes

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(full_disk_named(full_disk(self._path)))
            self._descriptor = stack.enter_context(replacing(self._path, mode=0o600, durable=self._durable)).fileno()
            self._write_at(0, memoryview(self._header))
            stack.push(self._check_complete)
            self._leaving = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leaving.__exit__(kind, error, trace)

    def write(self, spec: TensorSpec, start: int, block: NDArray[Any]) -> None:
        """Store `block` (flat, contiguous, storage dtype) as the elements of `spec` from `start`.

        Every element must be written exactly once, in any order.
        """
        if block.dtype != spec.storage:
            raise UsageError(f"a block of tensor {spec.name!r} does not have its storage dtype", check="block-dtype")
        offset = self._offsets[spec.name] + start * spec.storage.itemsize
        self._write_at(offset, block.view(np.uint8).data)
        with self._counting:
            self._missing -= block.nbytes

    def _write_at(self, offset: int, data: memoryview) -> None:
        while data:
            written = os.pwrite(self._descriptor, data[:_WRITE_CHUNK], offset)
            data, offset = data[written:], offset + written

    def _check_complete(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._missing:
            raise UsageError(f"{self._missing} bytes of the state were not written")


def full_disk(path: Path) -> str:
    """What to say when there is no space for a file."""
    return f"no space is left to write {path}; free some space and try again"


def _make_header(layout: Layout, metadata: Mapping[str, str] | None) -> tuple[bytes, dict[str, int]]:
    """The length-prefixed header of a file, and the offset of each tensor in bytes."""
    places = {}
    end = 0
    for spec in _in_file(layout):
        places[spec.name] = (end, end + spec.nbytes)
        end += spec.nbytes
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    table |= {
        spec.name: {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": list(places[spec.name]),
        }
        for spec in layout.specs
    }
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    return header, {name: len(header) + start for name, (start, _) in places.items()}


def _in_file(layout: Layout) -> list[TensorSpec]:
    """The tensors in the order of their data."""
    return sorted(layout.specs, key=lambda spec: -spec.storage.itemsize)


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object with unique keys: two readers must not see two models in one file."""
    table = dict(pairs)
    if len(table) != len(pairs):
        raise PeerError("a safetensors header holds the same key twice")
    return table
