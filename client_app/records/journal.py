"""Append-only file of JSON lines, for what an agent must still know after a crash.

Each line ends with a checksum of the rest, its key `sum`: a bit that the disk changes in a number would leave a line
that reads well, and says something else. Lines of before version 0.2.0 have none.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from fedcore.errors import ConfigurationError, EnvironmentFailure, StorageFull
from fedcore.system.files import full_disk_named, sync_folder

Entry = TypeVar("Entry")
_SUM: Final = re.compile(rb',"sum":"([0-9a-f]{8})"}$')


class AppendOnlyFile:
    """A file whose lines are on disk before `append` returns."""

    def __init__(self, path: Path, *, what: str) -> None:
        """Open the file, or create it; raises EnvironmentFailure if that fails.

        Args:
            path: of the file.
            what: its name in error messages.
        """
        self._path = path
        self._what = what
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EnvironmentFailure(f"{path} cannot be opened: {error.strerror}") from error
        sync_folder(path.parent)  # a new file's name is durable before it is used

    def read(self) -> bytes:
        """Read the file; an incomplete last line is removed."""
        content = self._path.read_bytes()
        complete = whole_lines(content)
        os.ftruncate(self._descriptor, complete)
        return content[:complete]

    def append(self, text: str, *, sync: bool = True) -> None:
        """Add a JSON object as a line, which is on disk on return; if this raises an error, the line is not there.

        Without `sync` it is safe from a crash of this process, and from others with the next line.
        """
        line = with_sum(text.encode()) + b"\n"
        end = os.fstat(self._descriptor).st_size
        try:
            with full_disk_named(f"the disk that holds {self._what} is full; free some space"):
                if os.write(self._descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if sync:
                    os.fsync(self._descriptor)
        except (OSError, StorageFull) as error:
            os.ftruncate(self._descriptor, end)
            if isinstance(error, StorageFull):
                raise
            raise EnvironmentFailure(f"{self._what} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)


def whole_lines(content: bytes) -> int:
    """How many bytes are complete lines: a crash in the middle of a write leaves an incomplete last one.

    Nothing that depends on it has left the machine. One that is complete but for the end of the line is none of these:
    the disk has changed that byte.
    """
    complete = content.rfind(b"\n") + 1
    last = content[complete:-1]
    return len(content) if last.endswith(b"}") and _SUM.search(last) else complete


def with_sum(line: bytes) -> bytes:
    """A JSON object, not an empty one, with the checksum of its text as the last key."""
    return line[:-1] + b',"sum":"%08x"}' % zlib.crc32(line)


def without_sum(line: bytes) -> bytes:
    """The text of which a line has the checksum; raises ValueError if that is another."""
    tail = _SUM.search(line)
    if tail is None:
        return line
    text = line[: tail.start()] + b"}"
    if zlib.crc32(text) != int(tail[1], 16):
        raise ValueError("the checksum is another")
    return text


def read_lines(path: Path, content: bytes, parse: Callable[[bytes], Entry], *, unknown: str) -> Iterator[Entry]:
    """Parse the lines of a file; raises ConfigurationError for a damaged one.

    Args:
        path: of the file, for the error.
        content: complete lines of it.
        parse: parses a line.
        unknown: what a damaged line leaves unknown, for the error.
    """
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            entry = parse(without_sum(line))
        except (ValueError, ConfigurationError):
            raise ConfigurationError(
                f"line {number} of {path} is damaged, so nothing on this machine says {unknown}; restore the file, or "
                "move the folder away and ask for a new identity",
                check="damaged",
            ) from None
        yield entry
