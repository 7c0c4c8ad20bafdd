"""The `fedcore` commands of a page, in processes of the fork server: a shell runs them as it runs any other.

What the shell starts is a small program that hands its words, folder, environment and open files to this process, and
ends as the command does. A command is killed when its program ends, whatever ends that.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from .forked import become
from .forking import CONTEXT

_ONE_AT_A_TIME = threading.Lock()
"""A process that is started asks all others whether they have ended: the status of each is read once."""
_HANDED_OVER = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect(sys.argv[1])
    socket.send_fds(there, [b"."], [0, 1, 2])
    command = {"words": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
    there.sendall(json.dumps(command).encode() + b"\\n")
    ended = there.recv(8)
status = int(ended or b"1")
sys.exit(status if status >= 0 else 128 - status)
"""


@contextlib.contextmanager
def commands() -> Iterator[str]:
    """The words of a shell that take the place of `fedcore`, while the context lasts."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        program, address = Path(folder, "fedcore.py"), Path(folder, "s")
        program.write_text(_HANDED_OVER)
        listening.bind(str(address))
        listening.listen()
        accepting = threading.Thread(target=_accept, args=(listening,))
        accepting.start()
        try:
            yield shlex.join([sys.executable, "-I", "-S", str(program), str(address)])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listening: socket.socket) -> None:
    serving = []
    with contextlib.suppress(OSError):
        while True:
            asking, _ = listening.accept()
            serving.append(threading.Thread(target=_serve, args=(asking,)))
            serving[-1].start()
    for one in serving:
        one.join()


def _serve(asking: socket.socket) -> None:
    """One command, from its words to its end."""
    with asking:
        _, files, _, _ = socket.recv_fds(asking, 1, 3)
        try:
            with asking.makefile("rb", buffering=0) as lines:
                command = json.loads(lines.readline())
            process: Any = CONTEXT.Process(target=_become, args=(command, _Files(files)))
            with _ONE_AT_A_TIME:
                process.start()
        finally:
            for descriptor in files:
                os.close(descriptor)
        if process.sentinel not in wait([asking, process.sentinel]):
            process.kill()  # its program is gone: it says nothing more
            wait([process.sentinel])
        with _ONE_AT_A_TIME:
            process.join()
            status = process.exitcode
            process.close()
        with contextlib.suppress(OSError):
            asking.sendall(str(status).encode())


class _Files:
    """Open files that go along to a process of the fork server."""

    def __init__(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors

    def __reduce__(self) -> tuple[Any, ...]:
        return _taken, tuple(DupFd(descriptor) for descriptor in self.descriptors)


def _taken(*handed: Any) -> list[int]:
    return [one.detach() for one in handed]


def _become(command: dict[str, Any], files: list[int]) -> None:
    """In the new process."""
    become(command["words"], command["folder"], command["environment"], files)
