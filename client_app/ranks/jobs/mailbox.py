"""Messages through a shared folder: two files, to each of which one side appends lines that the other reads.

A reader opens the file again at each look, which is what makes an NFS client ask its server for the file's size
(close-to-open consistency, RFC 7530, section 10.3); a listing of the folder may be half a minute old there.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

LOOK_SECONDS: Final = 0.1
"""Between two looks for something new."""
ALIVE_SECONDS: Final = 5.0
"""Between two signs of life."""
_TO_HOST: Final = "to-host"
_FROM_HOST: Final = "from-host"
Received = TypeVar("Received")


def make_mailbox(folder: Path) -> None:
    """Make both files, empty, in a new folder that is this user's alone."""
    folder.mkdir(mode=0o700, parents=True)
    for name in (_TO_HOST, _FROM_HOST):
        os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


class Mailbox(Generic[Received]):
    """One side of it.

    Args:
        folder: as `make_mailbox` left it.
        expected: the messages that may come.
        host: whether this is the host's side, and not the agent's.
    """

    def __init__(self, folder: Path, expected: TypeAdapter[Received], *, host: bool) -> None:
        self._incoming, self._outgoing = (folder / name for name in ((_TO_HOST, _FROM_HOST)[:: 1 if host else -1]))
        self._expected = expected
        self._position = 0
        self._posting = threading.Lock()

    def post(self, message: BaseModel) -> None:
        """Append one message, from any thread; raises OSError."""
        line = message.model_dump_json().encode() + b"\n"
        with self._posting:
            descriptor = os.open(self._outgoing, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                while line:
                    line = line[os.write(descriptor, line) :]
            finally:
                os.close(descriptor)

    def post_if_possible(self, message: BaseModel) -> None:
        """Append a message that is not missed if the folder is full or away."""
        with contextlib.suppress(OSError):
            self.post(message)

    def read(self) -> list[Received]:
        """What has arrived in full lines since the last call; raises OSError, ValueError for what is not expected."""
        with self._incoming.open("rb") as file:
            file.seek(self._position)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._position += len(complete)
        return [self._expected.validate_json(line) for line in complete.splitlines()]
