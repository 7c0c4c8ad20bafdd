"""What a scheduler of a cluster does for the agent: it takes a job, says how it is, and cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from client_app.ranks.failures import JOB_REFUSED, RankFailed
from fedcore.errors import ConfigurationError
from fedcore.system.concurrency import end

COMMAND_SECONDS: Final = 60.0
"""How long the scheduler may take for one command."""
HOST_MODULE: Final = "client_app.ranks.jobs.host"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """A job to be submitted.

    name: of all jobs of this agent, and of no other's.
    folder: for this job alone; the nodes see it.
    log: where the job's own output goes, with `%j` for its number.
    nodes: machines, on each of which the host starts once.
    variables: names of this process's variables that the job gets; no others do.
    """

    name: str
    folder: Path
    log: Path
    nodes: int
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job is. text: in the scheduler's words, such as "PENDING (Resources)"."""

    phase: Literal["waiting", "running", "over"]
    text: str


class Launcher(Protocol):
    """A scheduler. Its commands raise RankFailed if they fail, ConfigurationError if they are not there."""

    async def submit(self, job: RankJob) -> str:
        """Submit a job; how the scheduler calls it."""
        ...

    async def look(self, job: str) -> JobState:
        """How it is."""
        ...

    async def cancel(self, job: str) -> None:
        """End it, wherever it is by now; nothing happens if it is over."""
        ...

    async def cancel_left(self, name: str) -> list[str]:
        """End all jobs of that name, which an agent left that was killed; which those were."""
        ...

    def log_of(self, job: RankJob, number: str) -> str:
        """Where a person reads what the job printed."""
        ...


async def scheduler_output(*command: str, stdin: str = "") -> str:
    """What a command of the scheduler prints; a caller that is cancelled waits for its end.

    Raises RankFailed with what it says of its failure, ConfigurationError if there is no such program.
    """
    running = asyncio.ensure_future(_output(command, stdin))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def _output(command: Sequence[str], stdin: str) -> str:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except OSError as error:
        raise ConfigurationError(
            f"the ranks are to run in jobs, and {command[0]} cannot be started here ({error.strerror}); start the "
            "client on a machine that submits jobs, or remove the table [ranks] of client.toml",
            check="no-scheduler",
        ) from None
    talking = asyncio.ensure_future(process.communicate(stdin.encode()))
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            out, failure = await asyncio.shield(talking)
    except TimeoutError:
        process.kill()
        raise RankFailed(f"{command[0]} gave no answer within {COMMAND_SECONDS:.0f} s", JOB_REFUSED) from None
    finally:
        await end(talking, within=1.0)
    if process.returncode:
        reason = " ".join(failure.decode(errors="replace").split()) or f"exit status {process.returncode}"
        raise RankFailed(f"{command[0]} failed: {reason[:500]}", JOB_REFUSED)
    return out.decode(errors="replace")
