"""A group of ranks on several machines: torchrun starts the processes, and starts all of them again after a failure.

Rank 0 runs on machine 0 and reaches its agent there over a Unix-domain socket, with the same lines as a rank on one
machine; `client_app.ranks.elastic_rank` has the other side. The other machines have no connection to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from client_app.output import Output
from client_app.ranks.failures import RANK_HUNG, RANK_KILLED, RankFailed, failure_from
from client_app.ranks.group import (
    PRINTING_SECONDS,
    SOCKET,
    START_SECONDS,
    GroupSettings,
    Limit,
    RankGroup,
    RunningRanks,
    check_app,
    relay,
    remove_shared_memory,
)
from client_app.ranks.group_size import GroupSize, interface_of, own_address
from client_app.ranks.messages import FROM_RANK, Failure, FromRank, Progress, ToRank
from client_app.ranks.progress import LOOK_SECONDS, TaskProgress
from fedcore.system.concurrency import end
from fedcore.system.files import private_folder
from fedcore.system.json_lines import MAX_LINE, AsyncConnection

RESTART_PAUSE: Final = 1.0
"""Seconds before a torchrun that ended is started again, and between two looks for machine 0."""
_MAX_RESTARTS: Final = 1_000_000
_JOIN_SECONDS: Final = 7 * 24 * 3600
"""How long torchrun waits for a machine that is away; a person decides how long that may be."""
_ENDED: Final = "the ranks ended without an answer: one of them was killed, or its machine is gone"


@dataclass(slots=True)
class ElasticGroup(RankGroup):
    """The group as machine 0 sees it."""

    size: GroupSize = field(kw_only=True)
    _callers: asyncio.Queue[AsyncConnection[FromRank]] = field(default_factory=asyncio.Queue, init=False)
    _open: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack, init=False)
    _keeping: asyncio.Task[None] | None = field(default=None, init=False)

    async def _stop_ranks(self) -> None:
        """End the ranks on all machines; those elsewhere wait for this one to come back."""
        try:
            await super(ElasticGroup, self)._stop_ranks()  # a class with slots is made anew; super() finds the old one
        finally:
            await self._open.aclose()
            self._keeping = None
        while not self._callers.empty():
            await self._callers.get_nowait().close()

    async def _launch(self) -> RunningRanks:
        keeping = self._keeping or await self._begin()
        caller = await self._next_caller(keeping)
        running = _ElasticRanks(caller)
        try:
            check_app(await running.ask(self.settings.greeting(), Limit.of(START_SECONDS)), self.settings)
        except BaseException:
            await running.end()
            raise
        return running

    async def _begin(self) -> asyncio.Task[None]:
        """Listen for rank 0, and keep torchrun running until `stop`."""
        host, port = self.size.endpoint
        self.output.info("ranks", f"waiting for the ranks of {self.size.nnodes} machines at {host}:{port}")
        server = await asyncio.start_unix_server(self._accept, self.private / SOCKET, limit=MAX_LINE)
        self._open.callback(server.close)
        torchrun = Torchrun(settings=self.settings, size=self.size, folder=self.private, output=self.output)
        self._keeping = keeping = asyncio.create_task(torchrun.keep())
        self._open.push_async_callback(end, keeping)
        return keeping

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._keeping is None:  # it called in the moment of `stop`
            writer.close()
        else:
            self._callers.put_nowait(AsyncConnection(reader, writer, FROM_RANK))

    async def _next_caller(self, keeping: asyncio.Task[None]) -> AsyncConnection[FromRank]:
        """The next rank 0 that calls and is still there; raises what ended torchrun for good."""
        while True:
            calling = asyncio.ensure_future(self._callers.get())
            try:
                await asyncio.wait((calling, keeping), return_when=asyncio.FIRST_COMPLETED)
                if keeping.done():
                    keeping.result()
                caller = calling.result()
            finally:
                await end(calling)
            if not caller.reader.at_eof():
                return caller
            await caller.close()


@dataclass(frozen=True, slots=True)
class _ElasticRanks:
    """The ranks of all machines, as the connection to rank 0."""

    caller: AsyncConnection[FromRank]

    async def ask(self, message: ToRank, limit: Limit, progress: TaskProgress | None = None) -> list[FromRank]:
        try:
            async with asyncio.timeout(limit.remaining()):
                await self.caller.send(message)
                answer = await self._answer(progress)
        except TimeoutError:
            raise RankFailed(f"the ranks gave no answer within {limit.seconds:.0f} s", RANK_HUNG) from None
        except (OSError, ValueError):
            answer = None
        if answer is None:
            raise RankFailed(_ENDED, RANK_KILLED)
        if isinstance(answer, Failure):
            raise failure_from(answer)
        return [answer]

    async def _answer(self, progress: TaskProgress | None) -> FromRank | None:
        """The next message that is no report. Rank 0 alone reports: it waits for a rank that is stuck elsewhere."""
        receiving = asyncio.ensure_future(self.caller.receive())
        try:
            while True:
                await asyncio.wait([receiving], timeout=LOOK_SECONDS)
                if receiving.done():
                    message = receiving.result()
                    if not isinstance(message, Progress):
                        if progress is not None:
                            progress.note_answer(0)
                        return message
                    if progress is not None:
                        progress.take(0, message)
                    receiving = asyncio.ensure_future(self.caller.receive())
                if progress is not None:
                    progress.look()
        finally:
            await end(receiving)

    async def lost(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            message = await self.caller.receive()
            if isinstance(message, Failure):
                return str(failure_from(message))
        return "a rank ended"

    async def end(self) -> None:
        await self.caller.close()  # rank 0 ends the others, and torchrun starts all of them again


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun:
    """torchrun on this machine.

    folder: private, for the socket to the agent and for models on their way.
    """

    settings: GroupSettings
    size: GroupSize
    folder: Path
    output: Output

    async def keep(self) -> None:
        """Run torchrun, again and again, until cancelled; raises ConfigurationError for an endpoint that is none."""
        host, port = self.size.endpoint
        address = own_address(self.size.endpoint, is_host=self.size.node_rank == 0)
        while True:
            if self.size.node_rank > 0:
                self.output.info("ranks", f"waiting for machine 0 at {host}:{port}")
                await _listens(host, port)
            status = await self._once(address)
            self.output.warning("ranks", f"torchrun ended with exit status {status}; starting it again")
            await asyncio.sleep(RESTART_PAUSE)

    async def _once(self, address: str) -> int:
        """Run torchrun to its end; its exit status."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "client_app.ranks.launcher", str(theirs.fileno()), str(self.folder)),
                *self._arguments(address),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=self._environment(address),
            )
            theirs.close()
            assert process.stdout is not None  # noqa: S101 - it was started with a pipe
            printing = asyncio.create_task(relay(self.output, process.stdout))
            try:
                return await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()  # its ranks see that it is gone, and hold the pipe until they have ended too
                await process.wait()
                await end(printing, within=PRINTING_SECONDS)

    def _arguments(self, address: str) -> Sequence[str]:
        host, port = self.size.endpoint
        is_host = self.size.node_rank == 0
        return (
            *("--nnodes", str(self.size.nnodes), "--nproc-per-node", str(self.size.nproc_per_node)),
            *("--rdzv-backend", "c10d", "--rdzv-id", "fedcore", "--rdzv-endpoint", f"{host}:{port}"),
            *("--rdzv-conf", f"is_host={str(is_host).lower()},join_timeout={_JOIN_SECONDS}"),
            *("--local-addr", address, "--max-restarts", str(_MAX_RESTARTS)),
            # The interpreter is torchrun's own to add, with the flags of this environment.
            *self.settings.sandbox(self.folder, alone=False).arguments("client_app.ranks.elastic_rank"),
            *("--node-rank", str(self.size.node_rank)),
            *("--app", str(self.settings.app), "--folder", str(self.folder)),
        )

    def _environment(self, address: str) -> dict[str, str]:
        environment = {
            **self.settings.environment(self.folder),
            # Sharing the rendezvous' store with the ranks makes half of the restarts fail (torch 2.13, gloo).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        # Or else every rank that is lost costs the log a page of frames in C++.
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        if (interface := interface_of(address)) is not None:
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
            environment.setdefault("NCCL_SOCKET_IFNAME", interface)
        return environment


async def _listens(host: str, port: int) -> None:
    """Wait until somebody accepts connections there; torchrun gives up after a minute."""
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await writer.wait_closed()
            return
        await asyncio.sleep(RESTART_PAUSE)


async def serve_node(settings: GroupSettings, size: GroupSize, output: Output) -> None:
    """What a machine other than 0 does: it runs torchrun, until cancelled. Raises ConfigurationError."""
    with private_folder() as folder:
        try:
            await Torchrun(settings=settings, size=size, folder=folder, output=output).keep()
        finally:
            remove_shared_memory(folder)
