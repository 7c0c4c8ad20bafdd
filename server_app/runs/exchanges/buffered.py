"""The trainings of a buffered run: work for clients that are free, and a secure sum as soon as enough updates are
ready.

A training that the ServerApp asks for makes its model the newest version. While it is answered, free clients are given
that version, and those that say that they are ready are counted; as soon as a buffer is full, its updates are summed in
an ordinary secure exchange, whose mean is the answer (`fedcore.run.buffer`, docs/asynchrony.md). Work goes on
meanwhile, and through evaluations, for which clients that train are not asked.

All of it follows from the run's journal, from the rows of its exchanges, and from what clients say when they join.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedcore.errors import RoundFailed
from fedcore.run.buffer import WorkBook, buffer_size
from fedcore.run.engine.attempts import Attempt, run_attempts
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.exchange import make_work
from fedcore.run.retries import Attempts
from fedcore.wire.events import ClientDropped, StageProgress
from fedcore.wire.presence import WorkIn, WorkState
from fedcore.wire.tasks import Buffer, Task, Version
from server_app.runs.exchanges.secure import ReadyUpdates, SecureExchanges, SecureRequest
from server_app.runs.run_context import RunContext

READY: Final = "ready"
"""The stage in which a run waits for updates; it has the number of the exchange that they are for."""
_TICK_SECONDS: Final = 0.25


@dataclass(slots=True)
class _Named:
    """Updates that were in a sum whose survivors were named, and that stayed closed: in it again, or in none.

    task: of that sum.
    """

    task: Task
    clients: tuple[int, ...]

    def ready(self) -> ReadyUpdates:
        """To ask for the very same sum."""
        assert self.task.buffer is not None  # noqa: S101 - of a buffered exchange
        starts = dict(zip(self.task.cohort, self.task.buffer.starts, strict=True))
        buffer = Buffer(newest=self.task.buffer.newest, starts=[starts[client] for client in self.clients])
        return ReadyUpdates(cohort=self.clients, buffer=buffer, whole=True)


@dataclass(slots=True)
class BufferedExchanges:
    """Carries them out, one after the other. sums: who leads the exchanges themselves."""

    run: RunContext
    sums: SecureExchanges
    _book: WorkBook | None = field(default=None, init=False)
    _model: Path = field(default_factory=Path, init=False)
    """The file of the newest version."""
    _since: dict[int, float] = field(default_factory=dict, init=False)
    """When each client that trains was given its work."""

    async def exchange(self, asked: SecureRequest, versions: Sequence[str]) -> int:
        """The number of the exchange that gave the sum; raises RoundFailed.

        versions: SHA-256 of the model of each training that the ServerApp asked for, up to this one.
        """
        run = self.run
        runner = _BufferRunner(self, asked, await self._publish(asked, versions), self.sums.attempts())
        task, end = await run_attempts(runner, runner.retries)
        for client in end.survivors:
            up, down = run.services.work.bytes_of(client)
            end.usage.byte_counter(client)(up, down)
        self._spend(task, end.survivors)
        self.sums.note_success(task, end)
        return task.exchange

    # --- versions -------------------------------------------------------------------------------

    async def _publish(self, asked: SecureRequest, versions: Sequence[str]) -> WorkBook:
        """The strategy's model is the newest version from here on."""
        run, work = self.run, self.run.services.work
        if asked.model is None or asked.announced is None or asked.request.model is None:
            raise RoundFailed('a training names no model, and asynchrony = "buffered" sums changes of one')
        run.clients.check(len(asked.request.nodes), asked.request.message_type)
        book = self._book
        if book is None:
            members = len(run.services.roster.members)
            book = self._book = WorkBook(
                size=buffer_size(run.plan.settings, members, run.services.min_cohort),
                concurrency=run.plan.settings.concurrency or members,
                max_staleness=run.plan.settings.max_staleness,
                spent=run.state.spent,
            )
            work.open(run.plan.run, book)
            for sha256 in versions[:-1]:
                book.publish(sha256)
        before = book.in_hand
        for client in book.publish(versions[-1]):
            age = book.version.number - before[client].number
            self._let_go(client, f"its work began {age} versions ago, max-staleness is {book.max_staleness}")
        await run.files.remove(work.unneeded(book.version.number))
        self._model = await run.files.lend_version(book.version.number, asked.model)
        return book

    def _work(self, asked: SecureRequest, version: Version) -> Task:
        """What clients are asked to do with the newest version."""
        run = self.run
        return make_work(
            asked.request,
            settings=run.plan.settings,
            run=run.plan.run,
            exchange=run.state.count + 1,
            app_sha256=run.plan.app_sha256,
            run_config=run.plan.run_config,
            model=asked.announced,
            version=version,
            roster=run.services.roster.current.version,
        )

    # --- who is asked for its update ------------------------------------------------------------

    async def fill(self, asked: SecureRequest, book: WorkBook, last: str) -> tuple[int, ...]:
        """Whose updates are summed next; raises RoundFailed if they do not come together.

        last
            Why the attempt before came to nothing.
        """
        services, settings = self.run.services, self.run.plan.settings
        wait, began = settings.train_seconds + settings.join_seconds, services.clock()
        task = self._work(asked, book.version)
        while True:
            self._hear(book)
            self._miss(book)
            there = services.presence.eligible(self.run.plan.app_sha256, settings.liveness_seconds)
            there = frozenset(self.run.clients.without_cheats(sorted(there)))
            self._hand_out(book, task, there & frozenset(asked.request.nodes))
            members = book.buffer(there)
            self._tell(book, there, services.clock() - began)
            if members:
                return members
            if not book.can_fill(self.run.clients.without_cheats([*asked.request.nodes, *book.in_hand])):
                raise RoundFailed(
                    f"no buffer of {book.size} updates can be filled any more: too many clients have given theirs from "
                    "this model to a sum that stayed closed, or gave up" + (f". Before: {last}" if last else "")
                )
            if services.clock() - began > wait:
                raise RoundFailed(
                    f"{len(book.ready)} of the {book.size} updates of a buffer were there after {wait:g} s "
                    f"(train-seconds and join-seconds), {book.training} clients train. Lower buffer-size, let more "
                    "clients train at once (concurrency), or wait longer"
                )
            await services.client_bell.wait(_TICK_SECONDS)

    def _tell(self, book: WorkBook, there: frozenset[int], seconds: float) -> None:
        ready = min(len(there.intersection(book.ready)), book.size)
        self.run.event_log.add(
            StageProgress(
                exchange=self.run.state.count + 1,
                stage=READY,
                done=ready,
                expected=book.size,
                seconds=round(seconds, 3),
            )
        )

    def _hand_out(self, book: WorkBook, task: Task, clients: frozenset[int]) -> None:
        """Give the newest version to those that are free, drawn where not all can train."""
        services = self.run.services
        free = book.free(sorted(clients))
        for client in random.sample(free, min(len(free), book.room)):
            book.hand_out(client)
            services.work.give(client, task, self._model)
            self._since[client] = services.clock()
        if free:
            services.client_bell.ring()

    def _hear(self, book: WorkBook) -> None:
        """Take note of what clients say of their work."""
        for client, said in self.run.services.work.reports_of_run():
            own = book.trains_from(client)
            if own is None and said.state is not WorkState.GIVEN_UP:
                self._welcome_back(book, client, said)
            elif own == said.version and said.state is WorkState.READY:
                book.finish(client)
                self._done(client)
            elif own == said.version and said.state is WorkState.GIVEN_UP:
                book.give_up(client)
                why = said.withdrawal.why.strip() or said.withdrawal.reason.value if said.withdrawal else "no reason"
                self._let_go(client, f"withdrew from its work: {why}")

    def _welcome_back(self, book: WorkBook, client: int, said: WorkIn) -> None:
        """This server, or the client, was away: go on with what the client has."""
        if book.take_back(client, said.version, ready=said.state is WorkState.READY) and book.trains_from(client):
            self._since[client] = self.run.services.clock()

    def _miss(self, book: WorkBook) -> None:
        """A client that is gone, takes too long, or has lost its work leaves its place to others."""
        services, settings = self.run.services, self.run.plan.settings
        for client in book.training_clients:
            said = services.work.reports.get(client)
            if services.presence.silent_for(client) > settings.liveness_seconds:
                self._forget(book, client, f"silent for more than {settings.liveness_seconds:g} s while it trained")
            elif services.clock() - self._since.get(client, 0.0) > settings.train_seconds + settings.step_seconds:
                self._forget(book, client, f"its work was not done after {settings.train_seconds:g} s (train-seconds)")
            elif said is None and services.work.given_to(client, "", 0) is None:
                self._forget(book, client, "has started again, without its work")
        for client in book.ready:
            if client not in services.work.reports:
                self._forget(book, client, "has started again, without its update")

    def _forget(self, book: WorkBook, client: int, why: str) -> None:
        book.forget([client])
        said = self.run.services.work.reports
        if client in said and said[client].state is WorkState.TRAINING:
            del said[client]  # it says so again when it is back; an update that is ready stays so
        self._let_go(client, why)

    # --- what becomes of updates ----------------------------------------------------------------

    def _spend(self, task: Task, clients: Sequence[int]) -> None:
        """These updates are in a sum, and in no other one ever."""
        book = self._book
        assert book is not None  # noqa: S101 - made before any exchange
        book.forget(clients)
        book.spent.update(_numbers(task, clients))

    def discard(self, task: Task, clients: Sequence[int]) -> None:
        self._spend(task, clients)
        for client in clients:
            self._let_go(client, "its update was in a sum that stayed closed, and can be in no other")

    def _done(self, client: int) -> None:
        self._since.pop(client, None)
        self.run.services.work.take_away(client)

    def _let_go(self, client: int, why: str) -> None:
        self._done(client)
        name = self.run.services.names[client]
        self.run.event_log.add(ClientDropped(exchange=self.run.state.count, client=name, stage="train", reason=why))


class _BufferRunner:
    """Carries out the attempts at the sum of one buffer, as `AttemptRunner`."""

    def __init__(self, exchanges: BufferedExchanges, asked: SecureRequest, book: WorkBook, retries: Attempts) -> None:
        self._exchanges = exchanges
        self._asked = asked
        self._book = book
        self.retries = retries
        self._past = exchanges.run.past_of(asked.step)
        self._named: _Named | None = None
        self._last = ""

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        run, sums = self._exchanges.run, self._exchanges.sums
        if (row := next(self._past, None)) is not None:
            return await sums.go_on(self._asked, row)
        ready = await self._ready(attempt)
        await run.pause(attempt)
        await run.clients.come_back(ready.cohort, len(ready.cohort))
        return await sums.begin(self._asked, attempt, ready.cohort, whole=ready.whole, buffer=ready.buffer)

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        await self._exchanges.run.close_judged(task, end, self._asked.model)

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        if self._named is not None and self.retries.same is None:
            self._exchanges.discard(task, self._named.clients)
            self._named = None
        elif end.survivors:
            self._named = _Named(task, tuple(sorted(end.survivors)))
        run = self._exchanges.run
        run.note_attempt(task, end, error, again=again)
        self._last = run.explain(task, end, error)
        return self._last

    async def _ready(self, attempt: Attempt) -> ReadyUpdates:
        if self._named is not None:
            return self._named.ready()
        cohort = sorted(await self._exchanges.fill(self._asked, self._book, self._last))
        return ReadyUpdates(cohort=cohort, buffer=self._book.starts(cohort), whole=attempt.whole)


def _numbers(task: Task, clients: Sequence[int]) -> dict[int, int]:
    """From which version each of these clients' updates in a sum began."""
    assert task.buffer is not None  # noqa: S101 - of a buffered exchange
    starts = dict(zip(task.cohort, task.buffer.starts, strict=True))
    return {client: starts[client].number for client in clients}
