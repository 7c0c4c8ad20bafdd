"""Plain exchanges in memory: the real files, tasks and replies."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.errors import FedcoreError, RoundFailed
from fedcore.flower.clientside import Answer
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.run.engine.attempts import Attempt, run_attempts, run_now
from fedcore.run.engine.events import exchange_done
from fedcore.run.engine.outcome import ExchangeFailure, ExchangeOutcome, ExchangeUsage
from fedcore.run.plain import (
    INPUT,
    MESSAGE_UNAVAILABLE,
    NODE_UNAVAILABLE,
    OutgoingMessage,
    PlainReply,
    check_quorum,
    error_of,
    mean_metrics,
    plain_task,
    reply_error,
)
from fedcore.run.retries import Attempts
from fedcore.run.settings import JobSettings
from fedcore.simulation.devices.virtual_scheduler import UpdateStage, VirtualScheduler
from fedcore.simulation.dropouts import DropoutModel, RandomDropout
from fedcore.simulation.workers.executor import ClientExecutor, PlainTask
from fedcore.state import sha256_file
from fedcore.wire.base import Scalar
from fedcore.wire.events import ClientDropped, EventSink, ExchangeFailed, ignore
from fedcore.wire.record_file import RecordLocation
from fedcore.wire.tasks import ModelRef, Task
from fedcore.wire.uploads import ReplyError


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class PlainSimulation:
    """The plain exchanges of one simulated run.

    executor
        Runs the apps of `clients`.
    admit
        Raises what ends a run whose messages (record files) the owners do not allow.
    dropouts
        Which clients give no reply.
    virtual
        The virtual clock, None without one.
    emit
        Takes the events.
    name
        Of a client.
    count
        Exchanges so far, repeated ones too.
    """

    run: str
    executor: ClientExecutor
    clients: Collection[int]
    settings: JobSettings
    run_config: Mapping[str, Scalar]
    app_sha256: str
    admit: Callable[[Task, Sequence[Path]], None] = lambda task, contents: None
    dropouts: DropoutModel = field(default_factory=lambda: RandomDropout(0.0, 0))
    virtual: VirtualScheduler | None = None
    emit: EventSink = ignore
    name: Callable[[int], str] = str
    clock: Callable[[], float] = time.monotonic
    count: int = field(default=0, init=False)
    _folder: Path | None = field(default=None, init=False)

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """One exchange, tried again with new dropouts if a quorum was set and not met; raises RoundFailed."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedcore-plain-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        folder = self._folder
        runner = _SimulatedPlain(self, request, _messages(request, folder), folder)
        run_now(run_attempts(runner, Attempts.plain(self.settings)))
        return runner.replies

    def task(self, request: PlainRequest, cohort: Sequence[int], attempt: int) -> Task:
        """The task of one more exchange."""
        self.count += 1
        return plain_task(
            settings=self.settings,
            run=self.run,
            exchange=self.count,
            attempt=attempt,
            server_round=request.server_round,
            message_type=request.messages[0].message_type,
            cohort=cohort,
            app_sha256=self.app_sha256,
            run_config=self.run_config,
            weight_key=request.weight_key,
            timeout=request.timeout,
        )

    def replies(
        self, task: Task, messages: Mapping[int, OutgoingMessage], folder: Path, timeout: float | None = None
    ) -> list[PlainReply]:
        """What clients reply in one attempt, or errors; raises ProtocolViolation for what the owners do not allow.

        messages
            By client.
        folder
            Where replies are written.
        timeout
            That of the strategy: a client whose local work takes longer has no reply, as Flower leaves out who is late.
            One that only exceeds the task's seconds has an error in its place, as in a federation. The virtual clock
            knows other seconds.
        """
        first = next(iter(messages.values()))
        self.admit(first.to(task), list({message.content for message in messages.values()}))
        lost = {*self.dropouts.drops(task.cohort), *self._away(task.cohort)}
        tasks = {
            client: PlainTask(task=message.to(task), content=message.content, out=folder / f"{client}.reply")
            for client, message in sorted(messages.items())
            if client in self.clients and client not in lost
        }
        replies, late = {}, set()
        for client, answer in self.executor.answer(tasks):
            if self.virtual is not None or _seconds(answer) <= task.seconds:
                replies[client] = self._reply(client, answer, tasks[client].out)
            elif timeout is not None and timeout <= task.seconds:
                late.add(client)
                self._note_loss(client, f"took longer than the {timeout:g} s that the strategy waits (timeout)")
            else:
                reason = f"took longer than the {task.seconds:g} s of train-seconds"
                replies[client] = self._dropped(client, reply_error(MESSAGE_UNAVAILABLE, reason))
        self._let_time_pass(task, replies, messages, lost)
        return [replies.get(client) or self._absent(client) for client in sorted(messages) if client not in late]

    def _absent(self, client: int) -> PlainReply:
        if client not in self.clients:
            return PlainReply.failed(client, reply_error(NODE_UNAVAILABLE, f"node {client} is not connected"))
        return self._dropped(client, reply_error(NODE_UNAVAILABLE, "simulated dropout"))

    def _away(self, cohort: Sequence[int]) -> set[int]:
        """Who is not there, on the virtual clock."""
        if self.virtual is None:
            return set()
        self.virtual.begin()
        return set(cohort) - set(self.virtual.there(cohort))

    def _let_time_pass(
        self, task: Task, replies: dict[int, PlainReply], messages: Mapping[int, OutgoingMessage], lost: Collection[int]
    ) -> None:
        """Replace by errors the replies that come too late on the virtual clock."""
        if self.virtual is None or not task.trains:
            return
        answered = {client: reply for client, reply in replies.items() if reply.error is None and reply.content}
        down = max(message.reference.size for message in messages.values())
        with UpdateStage(time=self.virtual, task=task, down=down) as stage:
            if any(client in self.virtual.there(lost) for client in lost):
                stage.vanished.add(INPUT)
            examples = {client: reply.examples for client, reply in answered.items()}
            sizes = {client: float(one.size) for client, one in answered.items()}
            for client, reason in stage.stragglers(examples, sizes).items():
                replies[client] = self._dropped(client, reply_error(MESSAGE_UNAVAILABLE, reason))

    def _reply(self, client: int, answer: Answer | Exception, out: RecordLocation) -> PlainReply:
        if isinstance(answer, Exception):
            if not isinstance(answer, FedcoreError):
                traceback.print_exception(answer)
            return self._dropped(client, error_of(answer))
        if answer.error is not None:
            return self._dropped(client, answer.error)
        content = answer.memory or out
        return PlainReply(node=client, content=content, examples=answer.examples or 0, metrics=answer.metrics)

    def _dropped(self, client: int, error: ReplyError) -> PlainReply:
        self._note_loss(client, error.reason or f"error {error.code}")
        return PlainReply.failed(client, error)

    def _note_loss(self, client: int, reason: str) -> None:
        self.emit(ClientDropped(exchange=self.count, client=self.name(client), stage=INPUT, reason=reason))

    def done(self, task: Task, end: ExchangeOutcome, replies: Sequence[PlainReply], started: float) -> None:
        """Report an exchange that was completed, and count the updates of those who replied."""
        answered = [reply for reply in replies if reply.error is None]
        if task.trains:
            self.executor.count(task.server_round, end.survivors)
        done = exchange_done(
            task,
            end.survivors,
            self.name,
            usages=[end.usage],
            examples=sum(reply.examples for reply in answered),
            metrics=mean_metrics(answered) if answered else {},
            seconds=self.clock() - started,
            virtual_seconds=None if self.virtual is None else self.virtual.lap(),
        )
        self.emit(done)


@dataclass(slots=True)
class _SimulatedPlain:
    """Carries out the attempts at one plain exchange, as `AttemptRunner`. A run's state takes nothing from them."""

    simulation: PlainSimulation
    request: PlainRequest
    messages: Mapping[int, OutgoingMessage]
    folder: Path
    replies: list[PlainReply] = field(default_factory=list, init=False)

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        simulation, messages = self.simulation, self.messages
        started = simulation.clock()
        cohort = [node for node in messages if node in simulation.clients]
        task = simulation.task(self.request, cohort, attempt.number)
        self.replies = simulation.replies(task, messages, self.folder, self.request.timeout)
        answered = [reply for reply in self.replies if reply.error is None]
        try:
            check_quorum(len(answered), simulation.settings.quorum)
        except RoundFailed as error:
            return task, ExchangeOutcome(failure=ExchangeFailure.of(error))
        usage = ExchangeUsage(
            up={reply.node: reply.size for reply in answered},
            down={reply.node: messages[reply.node].reference.size for reply in answered},
            updates={reply.node: reply.size for reply in answered},
        )
        end = ExchangeOutcome(survivors=tuple(reply.node for reply in answered), usage=usage)
        simulation.done(task, end, self.replies, started)
        return task, end

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        pass

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        number, reason = task.server_round, str(error)
        self.simulation.emit(ExchangeFailed(exchange=task.exchange, server_round=number, reason=reason, retry=again))
        return reason


def _seconds(answer: Answer | Exception) -> float:
    return 0.0 if isinstance(answer, Exception) else answer.seconds


def _messages(request: PlainRequest, folder: Path) -> dict[int, OutgoingMessage]:
    paths = [folder / f"message-{index}" for index in range(len(request.contents))]
    references = []
    for path, content in zip(paths, request.contents, strict=True):
        content.save(path, durable=False)
        references.append(ModelRef(sha256=sha256_file(path), size=path.stat().st_size))
    return {
        one.node: OutgoingMessage(
            message_type=one.message_type, head=one.head, content=paths[one.content], reference=references[one.content]
        )
        for one in request.messages
    }
