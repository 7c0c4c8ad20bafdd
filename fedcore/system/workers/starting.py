"""Starting a worker process, and ending it with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from fedcore.system.json_lines import AsyncConnection
from fedcore.system.sandbox.sandbox import Sandbox

Received = TypeVar("Received")
_PR_SET_PDEATHSIG: Final = 1
# Looked up here: a lock of the loader that another thread held at the fork would stay locked in the child.
_PRCTL: Final = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def start_as_usual() -> None:
    """In a process from a fork server: what it starts begins as the platform has it, the workers of a DataLoader say.

    A fork server makes itself the default of what it forks. Each DataLoader with workers would then start another
    server, which imports torch again and stays when its rank is killed, and could not read a dataset that no pickle
    holds.
    """
    multiprocessing.set_start_method(None, force=True)


def start_worker(
    module: str,
    *arguments: str,
    sockets: Sequence[int],
    environment: Mapping[str, str],
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `python -m module ARGUMENTS`, which finds the modules that this process finds.

    It leads a session of its own: Ctrl-C reaches this process alone, and `end_worker` ends what it has started too.

    Args:
        module: one of fedcore's.
        arguments: of its command line.
        sockets: descriptors that it inherits; it ends when the other end of the first is closed.
        environment: laid over that of this process.
        output: subprocess.PIPE to read what it prints; None if it prints where this process does.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return subprocess.Popen(  # noqa: S603 - a module of fedcore
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=tuple(sockets),
        env={**os.environ, "PYTHONPATH": path, **environment},
        start_new_session=True,
    )


async def start_process(
    module: str,
    *arguments: str,
    expected: TypeAdapter[Received],
    environment: Mapping[str, str],
    sandbox: Sandbox,
    folder: Path | None = None,
    sockets: Sequence[int] = (),
    stderr: int = asyncio.subprocess.PIPE,
) -> tuple[asyncio.subprocess.Process, AsyncConnection[Received]]:
    """Start `python -m module FD ...` in a sandbox and a process group of its own; FD is the connection's other end.

    Args:
        module: one of fedcore's, whose first argument is FD.
        arguments: the others.
        expected: the messages that may come.
        environment: all of it.
        sandbox: what it may read and write.
        folder: where it works.
        sockets: descriptors that it inherits.
        stderr: where it goes; standard output comes over a pipe.
    """
    ours, theirs = socket.socketpair()
    # Our end has its streams first: whoever breaks off the start then closes them, and the process ends with them.
    with theirs:
        connection = await AsyncConnection.over(ours, expected)
        try:
            process = await asyncio.create_subprocess_exec(
                *(*sandbox.command(module), str(theirs.fileno()), *arguments),
                cwd=folder,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                pass_fds=(theirs.fileno(), *sockets),
                start_new_session=True,
            )
        except BaseException:
            connection.hang_up()
            raise
    return process, connection


def end_worker(process: subprocess.Popen[Any]) -> None:
    """End a worker and its process group now; does nothing for one that was waited for."""
    if process.returncode is None:
        kill_group(process.pid)
        process.wait()


def kill_group(leader: int) -> None:
    """SIGKILL to a process group; does nothing if there is none."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def die_with_parent() -> None:
    """In a child: have the kernel end it when its parent dies, even by SIGKILL (prctl(2), Linux)."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)
