"""A file of JSON lines that only grows: what an agent must still know after a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from fedcore.errors import ConfigurationError, EnvironmentFailure, StorageFull
from fedcore.system.files import full_disk_named, sync_folder

Entry = TypeVar("Entry")


class AppendOnlyFile:
    """The file at `path`, which is made where there is none.

    what: how messages name it. Raises EnvironmentFailure when it cannot be opened.
    """

    def __init__(self, path: Path, *, what: str) -> None:
        self._path = path
        self._what = what
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EnvironmentFailure(f"{path} cannot be opened: {error.strerror}") from error
        sync_folder(path.parent)  # a new file's name is durable before it is used

    def read(self) -> bytes:
        """What is in the file; a last line without its end is removed."""
        content = self._path.read_bytes()
        whole = whole_lines(content)
        os.ftruncate(self._descriptor, whole)
        return content[:whole]

    def append(self, text: str, *, sync: bool = True) -> None:
        """Add a line, which is on the disk on return; where this raises StorageFull or another error it is not there.

        Without `sync` it is safe from a crash of this process, and from others with the next line.
        """
        line = text.encode() + b"\n"
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
    """How many bytes of a journal are whole lines: a crash in the middle of a write leaves a last one without its end.

    Nothing that depends on that one has left the machine, unless it is of a kind that nothing depends on.
    """
    return content.rfind(b"\n") + 1


def read_lines(path: Path, content: bytes, parse: Callable[[bytes], Entry], *, unknown: str) -> Iterator[Entry]:
    """The entries of `content`, which was read from `path` and consists of whole lines.

    parse: a line to its entry. unknown: what is not known where a line is damaged, for the ConfigurationError.
    """
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            entry = parse(line)
        except (ValueError, ConfigurationError):
            raise ConfigurationError(
                f"line {number} of {path} is damaged, so it is not known {unknown}; restore the file, or move the "
                "folder away and ask for a new identity",
                check="damaged",
            ) from None
        yield entry
