"""A group of ranks on several machines: torchrun starts the processes, and starts all of them again after a failure.

Rank 0 runs on machine 0 and reaches its agent there over a Unix-domain socket, with the same lines as a rank on one
machine; `client_app.ranks.elastic_rank` has the other side. The other machines have no connection to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from client_app.output import Output
from client_app.ranks.failures import RANK_HUNG, RANK_KILLED, RankFailed, failure_from
from client_app.ranks.group import START_SECONDS, GroupSettings, Life, Limit, RankGroup, check_app
from client_app.ranks.group_size import GroupShape
from client_app.ranks.messages import FROM_RANK, Failure, FromRank, ToRank
from client_app.ranks.torchrun import Torchrun
from fedcore.errors import EnvironmentFailure
from fedcore.system.concurrency import end
from fedcore.system.json_lines import MAX_LINE, AsyncConnection

SOCKET: Final = "agent"
_MAX_SOCKET_PATH: Final = 100
"""Bytes of a Unix-domain socket's path; the kernel takes 108, with the final zero."""
_ENDED: Final = "the ranks ended without an answer: one of them was killed, or its machine is gone"


@dataclass(slots=True)
class ElasticGroup(RankGroup):
    """The group as machine 0 sees it."""

    shape: GroupShape = field(kw_only=True)
    _callers: asyncio.Queue[AsyncConnection[FromRank]] = field(default_factory=asyncio.Queue, init=False)
    _open: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack, init=False)
    _keeping: asyncio.Task[None] | None = field(default=None, init=False)

    async def stop(self) -> None:
        """End the ranks on all machines; those elsewhere wait for this one to come back."""
        await RankGroup.stop(self)  # a class with slots is made anew, so that super() finds the old one
        await self._open.aclose()
        self._keeping = None
        while not self._callers.empty():
            await self._callers.get_nowait().close()

    async def _launch(self) -> Life:
        keeping = self._keeping or await self._begin()
        caller = await self._next_caller(keeping)
        life = _ElasticLife(caller)
        try:
            check_app(await life.ask(self.settings.greeting(), Limit.of(START_SECONDS)), self.settings)
        except BaseException:
            await life.end()
            raise
        return life

    async def _begin(self) -> asyncio.Task[None]:
        """Listen for rank 0, and keep torchrun running until `stop`."""
        host, port = self.shape.endpoint
        self.output.info("ranks", f"waiting for the ranks of {self.shape.nnodes} machines at {host}:{port}")
        folder = self._open.enter_context(private_folder())
        server = await asyncio.start_unix_server(self._accept, folder / SOCKET, limit=MAX_LINE)
        self._open.callback(server.close)
        torchrun = Torchrun(settings=self.settings, shape=self.shape, folder=folder, output=self.output)
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
class _ElasticLife:
    """The connection to one life's rank 0."""

    caller: AsyncConnection[FromRank]

    async def ask(self, message: ToRank, limit: Limit) -> list[FromRank]:
        try:
            async with asyncio.timeout(limit.left()):
                await self.caller.send(message)
                answer = await self.caller.receive()
        except TimeoutError:
            raise RankFailed(f"the ranks gave no answer within {limit.seconds:.0f} s", RANK_HUNG) from None
        except (OSError, ValueError):
            answer = None
        if answer is None:
            raise RankFailed(_ENDED, RANK_KILLED)
        if isinstance(answer, Failure):
            raise failure_from(answer)
        return [answer]

    async def lost(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            message = await self.caller.receive()
            if isinstance(message, Failure):
                return str(failure_from(message))
        return "a rank ended"

    async def end(self) -> None:
        await self.caller.close()  # rank 0 ends the others, and torchrun starts all of them again


async def serve_node(settings: GroupSettings, shape: GroupShape, output: Output) -> None:
    """What a machine other than 0 does: it runs torchrun, until cancelled. Raises ConfigurationError."""
    with private_folder() as folder:
        await Torchrun(settings=settings, shape=shape, folder=folder, output=output).keep()


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can enter, with a short name, removed at the end; raises EnvironmentFailure."""
    folder = Path(tempfile.mkdtemp(prefix="fedcore-"))
    try:
        if len(str(folder / SOCKET).encode()) > _MAX_SOCKET_PATH:
            raise EnvironmentFailure(f"{folder} is too long for a socket's path; set TMPDIR to a shorter folder")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
