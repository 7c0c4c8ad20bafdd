"""A group of ranks on one machine: the agent starts each process, watches it, and ends all at the first failure."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from client_app.output import Output
from client_app.ranks.failures import RANK_HUNG, RANK_KILLED, RankFailed, RankLeftAlone, failure_from
from client_app.ranks.group import (
    PRINTING_SECONDS,
    START_SECONDS,
    GroupSettings,
    Limit,
    RankGroup,
    RunningRanks,
    check_app,
    relay,
)
from client_app.ranks.messages import FROM_RANK, Failure, FromRank, Progress, ToRank
from client_app.ranks.progress import LOOK_SECONDS, TaskProgress
from fedcore.errors import AppError, StorageFull
from fedcore.system.concurrency import end
from fedcore.system.json_lines import AsyncConnection
from fedcore.system.peers import BLAME_SECONDS, first_cause
from fedcore.system.sandbox.sandbox import Sandbox
from fedcore.system.workers.failures import exit_description
from fedcore.system.workers.starting import kill_group, start_process

LOOPBACK: Final = "127.0.0.1"
_LAST_ANSWER_SECONDS: Final = 0.2
"""A line that a process wrote just before its end is already in the socket; its children may keep that open."""


@dataclass(slots=True)
class LocalGroup(RankGroup):
    """`settings.ranks` processes on this machine.

    start_rank: starts the process of a rank, as the function `start_rank` does.
    """

    start_rank: StartRank = field(default_factory=lambda: start_rank)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks that run; empty while they start."""
        running = self.present
        return tuple(rank.process.pid for rank in running.ranks) if isinstance(running, _LocalRanks) else ()

    def _stays_warm(self, error: BaseException) -> bool:
        return self.settings.ranks == 1 and isinstance(error, AppError | StorageFull)

    async def _launch(self) -> RunningRanks:
        running = _LocalRanks(self.start_rank)
        try:
            await running.begin(self.settings, self.private, self.output)
            check_app(await running.ask(self.settings.greeting(), Limit.of(START_SECONDS)), self.settings)
        except BaseException:
            await running.end()
            raise
        return running


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """A running process, the connection to it, and the task that shows what it prints.

    The process leads a group of its own: Ctrl-C on the terminal reaches the agent alone, and ending the rank ends
    what the app started, the workers of its data loaders among it.
    """

    number: int
    process: asyncio.subprocess.Process
    connection: AsyncConnection[FromRank]
    printing: asyncio.Task[None]

    async def ask(self, message: ToRank, progress: TaskProgress | None) -> FromRank:
        """The rank's answer to one message; raises what its failure means, or RankFailed when the process ends."""
        answering = asyncio.ensure_future(self._answer(message, progress))
        exit_wait = asyncio.ensure_future(self.process.wait())
        try:
            await asyncio.wait((answering, exit_wait), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((answering,), timeout=_LAST_ANSWER_SECONDS)
            answer = answering.result() if answering.done() else None
        finally:
            await end(answering, exit_wait)
        if answer is None:
            raise RankFailed(await self.how_it_ended(), RANK_KILLED)
        if isinstance(answer, Failure):
            raise failure_from(answer)
        return answer

    async def _answer(self, message: ToRank, progress: TaskProgress | None) -> FromRank | None:
        try:
            await self.connection.send(message)
            while isinstance(answer := await self.connection.receive(), Progress):
                if progress is not None:
                    progress.take(self.number, answer)
            if progress is not None:
                progress.note_answer(self.number)
            return answer
        except ConnectionError:
            return None
        except (OSError, ValueError) as error:
            text = f"the connection to rank {self.number} broke ({type(error).__name__})"
            raise RankFailed(text, RANK_KILLED) from error

    async def how_it_ended(self) -> str:
        """How the process ended, in words."""
        try:
            async with asyncio.timeout(5):
                code = await self.process.wait()
        except TimeoutError:
            return f"rank {self.number} closed its connection"
        return f"rank {self.number} {exit_description(code)}"

    def kill(self) -> None:
        """End the process and its group."""
        kill_group(self.process.pid)

    async def close(self) -> None:
        """Wait for the end of a killed process, and close what leads to it."""
        await self.process.wait()
        await self.connection.close()
        await end(self.printing, within=PRINTING_SECONDS)


StartRank = Callable[[int, dict[str, str], Sandbox, socket.socket | None, Output], Awaitable[RankProcess]]


@dataclass(slots=True)
class _LocalRanks:
    """Processes that were started together, one for each rank."""

    start_rank: StartRank
    ranks: list[RankProcess] = field(default_factory=list)

    async def begin(self, settings: GroupSettings, private: Path, output: Output) -> None:
        """Start the processes. Rank 0 gets the socket that its store listens on, so that nobody races for a port."""
        with socket.create_server((LOOPBACK, 0)) as store:
            shared = _environment(settings, private, store.getsockname()[1])
            sandbox = settings.sandbox(private, alone=settings.alone)
            for number in range(settings.ranks):
                listening = store if number == 0 and settings.ranks > 1 else None
                self.ranks.append(await self.start_rank(number, shared, sandbox, listening, output))

    async def ask(self, message: ToRank, limit: Limit, progress: TaskProgress | None = None) -> list[FromRank]:
        if progress is not None:
            progress.expect(rank.number for rank in self.ranks)
        asking = [asyncio.create_task(rank.ask(message, progress)) for rank in self.ranks]
        try:
            while True:
                seconds = min(limit.remaining(), LOOK_SECONDS)
                done, waiting = await asyncio.wait(asking, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
                if failed := [job for job in done if job.exception()]:
                    raise await _to_blame(failed, waiting)
                if not waiting:
                    return [job.result() for job in asking]
                if not limit.remaining():
                    raise RankFailed(_silent([asking.index(job) for job in waiting], limit.seconds), RANK_HUNG)
                if progress is not None:
                    progress.look()
        finally:
            await end(*asking)

    async def lost(self) -> str:
        endings = {asyncio.create_task(rank.process.wait()): rank for rank in self.ranks}
        try:
            done, _ = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*endings)
        return await endings[done.pop()].how_it_ended()

    async def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            await rank.close()


async def _to_blame(failed: Sequence[asyncio.Task[FromRank]], waiting: set[asyncio.Task[FromRank]]) -> BaseException:
    """The failure that led to the others: a rank that merely lost its peer waits for the peer's own."""
    failures = [job.exception() for job in failed]
    if waiting and all(isinstance(failure, RankLeftAlone) for failure in failures):
        done, _ = await asyncio.wait(waiting, timeout=BLAME_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        failures += [job.exception() for job in done]
    known = [failure for failure in failures if failure is not None]
    return first_cause(known, lambda failure: isinstance(failure, RankLeftAlone))


def _silent(numbers: Sequence[int], seconds: float) -> str:
    names = ", ".join(map(str, sorted(numbers)))
    return f"rank{'s' if len(numbers) > 1 else ''} {names} gave no answer within {seconds:.0f} s"


def _environment(settings: GroupSettings, private: Path, port: int) -> dict[str, str]:
    """What all ranks have in their environment, under the names that torchrun gives."""
    return {
        **settings.environment(private),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(settings.ranks),
        "LOCAL_WORLD_SIZE": str(settings.ranks),
        "GROUP_RANK": "0",
    }


async def start_rank(
    number: int, shared: dict[str, str], sandbox: Sandbox, store: socket.socket | None, output: Output
) -> RankProcess:
    """Start a rank.

    Args:
        number: its rank in the group.
        shared: what all ranks have in their environment.
        sandbox: what it may read and write.
        store: the socket that the group's store listens on; None for all but rank 0.
        output: where what it prints is shown.
    """
    inherited = [] if store is None else [store.fileno()]
    process, connection = await start_process(
        "client_app.ranks.rank",
        *map(str, inherited),
        expected=FROM_RANK,
        environment={**shared, "RANK": str(number), "LOCAL_RANK": str(number)},
        sandbox=sandbox,
        sockets=inherited,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None  # noqa: S101 - it was started with a pipe
    printing = asyncio.create_task(relay(output, process.stdout))
    return RankProcess(number=number, process=process, connection=connection, printing=printing)
