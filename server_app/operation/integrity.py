"""Whether an SQLite database is what was written: SQLite itself looks at no page before it needs it.

To SQLite a log (the `-wal` file) with a wrong checksum in the middle is one that ends there: without these checks a
server would go on with less than it has promised.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedcore.errors import StorageDamaged
from server_app.storage.trouble import explained_sqlite

_HEADER: Final = struct.Struct(">8I")
"""Magic, version, page size, sequence, two salts, two checksums (https://www.sqlite.org/fileformat2.html#walformat)."""
_FRAME: Final = struct.Struct(">6I")
"""Page, size of the database after a commit or 0, two salts, two checksums."""
_PAGE_BYTES: Final = 4096
_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The byte order of checksums."""
_REMEDY: Final = (
    "stop the server, keep the database's files, and put back the last backup (docs/howto/troubleshooting.md)"
)


def prepare(path: Path) -> None:
    """Make a database without tables if there is none, and check all of one that is there. Raises StorageDamaged."""
    _make_file(path)
    _check_log(path)
    check_file(path)


def _make_file(path: Path) -> None:
    """Make a database without tables, unless there is a file; a kill leaves no file or a whole one, never 0 bytes."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(draft)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    os.replace(draft, path)


def _check_log(path: Path) -> None:
    """Check the log of a database that nobody has open; raises StorageDamaged if committed writes cannot be read."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size and _is_cut(log.read_bytes()):
        raise StorageDamaged(
            f"the log of the server's database, {log}, was changed on the disk, so what was committed last cannot be "
            f"read: {_REMEDY}",
            check="damaged-log",
        )


def check_file(path: Path) -> None:
    """Check every page of a database, which others may use meanwhile. Raises StorageDamaged, StorageUnavailable."""
    if not path.is_file() or not path.stat().st_size:
        raise StorageDamaged(f"the server's database {path} is gone, or was emptied: {_REMEDY}", check="gone")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            (fault,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise explained_sqlite(error) from error
    if fault != "ok":
        raise StorageDamaged(f"the server's database {path} is damaged ({fault.splitlines()[-1]}): {_REMEDY}")


def _is_cut(content: bytes) -> bool:
    """Whether something in the middle of a log is damaged.

    A transaction that was being written in a power cut may be there in part. It was the last one: the next is written
    only once this one is on the disk. So there is damage if a transaction follows one that does not hold. Frames of an
    earlier log, whose place this one takes, have other salts.
    """
    broken = is_over = False
    for frame in _frames(content):
        if is_over and frame.belongs:
            return True
        broken = broken or not frame.holds
        is_over = is_over or (broken and frame.belongs and frame.commits)
    return False


@dataclass(frozen=True, slots=True)
class _Frame:
    """belongs: to this log. commits: a transaction ends with it. holds: so do its checksum and those before it."""

    belongs: bool
    commits: bool
    holds: bool


def _frames(content: bytes) -> Iterator[_Frame]:
    if len(content) < _HEADER.size + _FRAME.size:
        return
    magic, _, page_bytes, _, *salts, one, two = _HEADER.unpack_from(content)
    order = _MAGIC.get(magic, "<")
    sums = _checksum(content[:24], order, (0, 0))
    holds = magic in _MAGIC and sums == (one, two)
    if not holds:  # the frames say what it said
        page_bytes, salts = _PAGE_BYTES, list(_FRAME.unpack_from(content, _HEADER.size)[2:4])
    size = _FRAME.size + page_bytes
    for start in range(_HEADER.size, len(content) - size + 1, size):
        _, pages, *its_salts, one, two = _FRAME.unpack_from(content, start)
        belongs = its_salts == salts
        if holds:
            sums = _checksum(content[start : start + 8], order, sums)
            sums = _checksum(content[start + _FRAME.size : start + size], order, sums)
            holds = belongs and sums == (one, two)
        yield _Frame(belongs, commits=pages > 0, holds=holds)


def _checksum(content: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    one, two = sums
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for even, odd in zip(words, words, strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two
