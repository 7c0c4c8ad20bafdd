"""A job that was submitted: its mailbox and its state, watched at the same time until it is over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, TypeVar

from client_app.output import Output
from client_app.ranks.failures import JOB_LOST, RankFailed
from client_app.ranks.jobs.launcher import JobState, Launcher, RankJob
from client_app.ranks.jobs.mailbox import ALIVE_SECONDS, LOOK_SECONDS, Mailbox
from client_app.ranks.jobs.messages import (
    Alive,
    FromHost,
    HostAnswer,
    HostFailure,
    HostLeave,
    HostLine,
    HostReady,
    HostSteps,
    HostTask,
    error_of,
)
from client_app.ranks.messages import LocalAnswer
from client_app.ranks.progress import TaskProgress
from fedcore.errors import ConfigurationError, FedcoreError
from fedcore.system.concurrency import end

SILENT_SECONDS: Final = 90.0
"""Without a sign of life from a host that has said something: its node does not run any more, or the folder is away."""
_TROUBLES: Final = 12
"""Failed questions to the scheduler, one after another, before the log says so again."""
Awaited = TypeVar("Awaited", HostReady, HostAnswer)


@dataclass(slots=True, kw_only=True)
class JobWatch:
    """One job.

    start_seconds: how long the ranks may take from the start of the job until they are ready.
    """

    job: RankJob
    box: Mailbox[FromHost]
    launcher: Launcher
    output: Output
    poll_seconds: float
    start_seconds: float
    number: str = field(default="", init=False)
    state: JobState = field(default_factory=lambda: JobState("waiting", "submitted"), init=False)
    _over: asyncio.Future[str] = field(init=False)
    _messages: asyncio.Queue[HostReady | HostAnswer | HostFailure] = field(init=False)
    _progress: TaskProgress | None = field(default=None, init=False)
    _last_word: float | None = field(default=None, init=False)
    _work: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._over = asyncio.get_running_loop().create_future()
        self._messages = asyncio.Queue()

    @property
    def title(self) -> str:
        """The job, as a person finds it: its number, its name and how it is."""
        return f"job {self.number} ({self.job.name}, {self.state.text})"

    async def submit(self) -> None:
        """Submit it; raises RankFailed, ConfigurationError."""
        # A job that the scheduler has taken is known by its number, whatever happens meanwhile.
        submitting = asyncio.ensure_future(self.launcher.submit(self.job))
        try:
            self.number = await asyncio.shield(submitting)
        except asyncio.CancelledError:
            await asyncio.wait([submitting])
            if submitting.exception() is None:
                self.number = submitting.result()
            raise
        log = self.launcher.log_of(self.job, self.number)
        self.output.info("job", f"job {self.number} ({self.job.name}) is submitted; its log is {log}")
        self._work = [asyncio.create_task(work) for work in (self._poll(), self._listen(), self._greet())]

    async def expect(self, kind: type[Awaited]) -> Awaited:
        """The next message, which is of that kind; raises what a failure means, RankFailed if the job is over."""
        receiving = asyncio.ensure_future(self._messages.get())
        try:
            await asyncio.wait((receiving, self._over), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                raise RankFailed(self._over.result(), JOB_LOST)
            message = receiving.result()
        finally:
            await end(receiving)
        if isinstance(message, HostFailure):
            raise error_of(message)
        if not isinstance(message, kind):
            raise RankFailed(f"{self.title} sent a {type(message).__name__}", JOB_LOST)
        return message

    async def ask(self, task: HostTask, progress: TaskProgress | None) -> LocalAnswer:
        """The answer to a task; an answer to one before is dropped."""
        self._progress = progress
        while not self._messages.empty():
            self._messages.get_nowait()
        await asyncio.to_thread(self.box.post, task)
        try:
            while True:
                answer = await self.expect(HostAnswer)
                if answer.number == task.number:
                    return answer.answer
        finally:
            self._progress = None

    async def lost(self) -> str:
        """Wait until the job is over; how, in words."""
        return await asyncio.shield(self._over)

    async def end(self) -> None:
        """Cancel the job; does nothing the second time."""
        work, self._work = self._work, []
        await end(*work)
        number, self.number = self.number, ""
        if not number:
            return
        self.box.post_if_possible(HostLeave())
        try:
            await self.launcher.cancel(number)
        except FedcoreError as error:
            self.output.warning("job", f"job {number} could not be cancelled ({error}); the next start tries again")

    def _finish(self, how: str) -> None:
        if not self._over.done():
            self._over.set_result(how)

    def _lost(self, how: str) -> str:
        log = self.launcher.log_of(self.job, self.number)
        return f"job {self.number} ({self.job.name}) {how}; its log is {log}"

    async def _poll(self) -> None:
        """Ask the scheduler, until the job is over."""
        loop, troubles, started = asyncio.get_running_loop(), 0, None
        while True:
            try:
                state, troubles = await self.launcher.look(self.number), 0
            except (RankFailed, ConfigurationError) as error:
                if troubles % _TROUBLES == 0:
                    self.output.warning("job", f"how job {self.number} is cannot be seen: {error}")
                troubles, state = troubles + 1, self.state
            if state != self.state:
                self.state = state
                self.output.info("job", f"job {self.number}: {state.text}")
            if state.phase == "over":
                await asyncio.sleep(10 * LOOK_SECONDS)  # what the host said last is read first
                self._finish(self._lost(f"is over: {state.text}"))
                return
            if state.phase == "running":
                started = started or loop.time()
                last = self._last_word
                if last is None and loop.time() - started > self.start_seconds:
                    self._finish(self._lost(f"runs, and nothing has come from it for {self.start_seconds:.0f} s"))
                if last is not None and loop.time() - last > SILENT_SECONDS:
                    self._finish(self._lost(f"runs, and nothing has come from it for {SILENT_SECONDS:.0f} s"))
            await asyncio.sleep(self.poll_seconds)

    async def _greet(self) -> None:
        """Tell the host that the agent is there."""
        while True:
            await asyncio.to_thread(self.box.post_if_possible, Alive())
            await asyncio.sleep(ALIVE_SECONDS)

    async def _listen(self) -> None:
        """Take what the host says."""
        while True:
            try:
                messages = await asyncio.to_thread(self.box.read)
            except OSError as error:
                self._finish(self._lost(f"cannot be heard: its folder cannot be read ({error.strerror})"))
                return
            except ValueError:
                self._finish(self._lost("sent something that this version does not know"))
                return
            for message in messages:
                self._last_word = asyncio.get_running_loop().time()
                self._take(message)
            await asyncio.sleep(LOOK_SECONDS)

    def _take(self, message: FromHost) -> None:
        match message:
            case HostLine():
                show = {"info": self.output.info, "warning": self.output.warning, "error": self.output.error}
                show[message.level](message.stage, message.text)
            case HostSteps():
                if self._progress is not None:
                    self._progress.tell(message.steps, message.still)
            case HostReady() | HostAnswer() | HostFailure():
                self._messages.put_nowait(message)
            case Alive():
                pass
