"""Ranks of `client_app.ranks.supervisor` that the fork server makes: a tenth of a second, not seconds of imports.

They are what `client_app.ranks.rank` is, in a session of their own, with the environment, the socket to the agent and
the store's socket that the supervisor gives them. That it starts such processes itself is tested with real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from multiprocessing.context import ForkServerProcess
from typing import Any

from client_app.output import Output
from client_app.ranks import rank as rank_module
from client_app.ranks.group import relay
from client_app.ranks.messages import FROM_RANK
from client_app.ranks.supervisor import RankProcess
from fedcore.system.json_lines import AsyncConnection
from fedcore.system.sandbox.sandbox import Sandbox
from fedcore.system.workers.starting import start_as_usual
from support.forking import CONTEXT


class _Forked:
    """What the supervisor asks of `asyncio.subprocess.Process`."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process
        self._status = 0
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(process.sentinel, self._end)

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        await self._ended.wait()
        return self._status

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        assert self._process.exitcode is not None
        self._status = self._process.exitcode
        self._process.close()
        self._ended.set()


async def spawn(
    number: int, shared: dict[str, str], sandbox: Sandbox, store: socket.socket | None, output: Output
) -> RankProcess:
    """As `client_app.ranks.supervisor.start_rank`, but without the sandbox, which the fork server's threads miss."""
    del sandbox
    ours, theirs = socket.socketpair()
    shown, printed = socket.socketpair()
    try:
        environment = {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}
        process: Any = CONTEXT.Process(target=_become, args=(environment, theirs, store, printed))
        with theirs, printed:
            process.start()
        shown.recv(1)  # it leads a session of its own, and so can be ended with all that it starts
    except BaseException:
        ours.close()
        shown.close()
        raise
    forked: Any = _Forked(process)
    printing = asyncio.create_task(_show(output, shown))
    try:
        connection = await AsyncConnection.over(ours, FROM_RANK)
    except BaseException:
        ours.close()
        forked.kill()
        await printing
        raise
    return RankProcess(number=number, process=forked, connection=connection, printing=printing)


async def _show(output: Output, shown: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=shown)
    try:
        await relay(output, reader)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _become(
    environment: dict[str, str], connection: socket.socket, store: socket.socket | None, printed: socket.socket
) -> None:
    """The process of the rank."""
    start_as_usual()
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    # As ranks are started: to what it would leave in the app's folder nobody could agree.
    sys.dont_write_bytecode = True
    for descriptor in (1, 2):
        os.dup2(printed.fileno(), descriptor)
    printed.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - as long as the process lives
    sys.stdout.write("\n")
    sys.argv = ["client_app.ranks.rank", str(connection.detach())]
    if store is not None:
        sys.argv += [str(store.detach())]
    rank_module.main()
