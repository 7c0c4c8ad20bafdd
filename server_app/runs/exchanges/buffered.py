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
from fedcore.federation.admission.refusals import describe
from fedcore.run.buffer import (
    STAYED_CLOSED,
    NamedUpdates,
    ReadyUpdates,
    WorkBook,
    buffer_seconds,
    model_of,
    overdue,
)
from fedcore.run.engine.attempts import Attempt, run_attempts
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.exchange import make_work
from fedcore.run.retries import Attempts
from fedcore.wire.events import ClientDropped, StageProgress
from fedcore.wire.presence import WorkIn, WorkState
from fedcore.wire.tasks import Task, Version
from server_app.runs.exchanges.secure import SecureExchanges, SecureRequest
from server_app.runs.run_context import RunContext

READY: Final = "ready"
"""The stage in which a run waits for updates; it has the number of the exchange that they are for."""
_TICK_SECONDS: Final = 0.25


@dataclass(slots=True)
class BufferedExchanges:
    """Carries them out, one after the other.

    run
        What all parts that lead the run share.
    sums
        Leads the exchanges themselves.
    """

    run: RunContext
    sums: SecureExchanges
    _book: WorkBook | None = field(default=None, init=False)
    _model: Path = field(default_factory=Path, init=False)
    """The file of the newest version."""
    _since: dict[int, float] = field(default_factory=dict, init=False)
    """When each client that trains was given its work."""

    async def exchange(self, request: SecureRequest, versions: Sequence[str]) -> int:
        """The number of the exchange that gave the sum; raises RoundFailed.

        asked
            What the ServerApp asks for.
        versions
            SHA-256 of the model of each training that it asked for, up to this one.
        """
        run = self.run
        runner = _BufferRunner(self, request, await self._publish(request, versions), self.sums.attempts())
        task, end = await run_attempts(runner, runner.retries)
        for client in end.survivors:
            up, down = run.services.work.bytes_of(client)
            end.usage.byte_counter(client)(up, down)
        runner.book.spend(task, end.survivors)
        self.sums.note_success(task, end)
        return task.exchange

    # --- versions -------------------------------------------------------------------------------

    async def _publish(self, request: SecureRequest, versions: Sequence[str]) -> WorkBook:
        """The strategy's model is the newest version from here on."""
        run, work = self.run, self.run.services.work
        model_of(request.exchange)
        run.clients.check(len(request.exchange.nodes), request.exchange.message_type)
        book = self._book
        if book is None:
            book = self._book = WorkBook.of(
                run.plan.settings, len(run.services.roster.members), run.services.min_cohort, spent=run.state.spent
            )
            work.open(run.plan.run, book)
            for sha256 in versions[:-1]:
                book.publish(sha256)
        for client, reason in book.publish(versions[-1]).items():
            self._note_drop(client, reason)
        await run.files.remove(work.unneeded(book.version.number))
        assert request.model is not None  # noqa: S101 - a request with a model has its file
        self._model = await run.files.keep_version(book.version.number, request.model)
        return book

    def _work(self, request: SecureRequest, version: Version) -> Task:
        """What clients are asked to do with the newest version."""
        run = self.run
        return make_work(
            request.exchange,
            settings=run.plan.settings,
            run=run.plan.run,
            exchange=run.state.count + 1,
            app_sha256=run.plan.app_sha256,
            run_config=run.plan.run_config,
            model=request.announced,
            version=version,
            roster=run.services.roster.current.version,
        )

    # --- who is asked for its update ------------------------------------------------------------

    async def fill(self, request: SecureRequest, book: WorkBook, before: str) -> tuple[int, ...]:
        """Whose updates are summed next; raises RoundFailed if they do not come together.

        asked
            What the ServerApp asks for.
        book
            Who trains from which version, and who is ready.
        before
            Why the attempt before gave nothing.
        """
        services, settings = self.run.services, self.run.plan.settings
        began = services.clock()
        task = self._work(request, book.version)
        while True:
            self._take_reports(book)
            self._drop_missing(book)
            present = services.presence.eligible(self.run.plan.app_sha256, settings.liveness_seconds)
            present = frozenset(self.run.clients.without_cheats(sorted(present)))
            self._hand_out(book, task, present & frozenset(request.exchange.nodes))
            members = book.buffer(present)
            self._note_progress(book, present, services.clock() - began)
            if members:
                return members
            book.check_fillable(self.run.clients.without_cheats([*request.exchange.nodes, *book.in_hand]), before)
            if services.clock() - began > buffer_seconds(settings):
                raise book.not_full(buffer_seconds(settings))
            await services.client_bell.wait(_TICK_SECONDS)

    def _note_progress(self, book: WorkBook, present: frozenset[int], seconds: float) -> None:
        ready = min(len(present.intersection(book.ready)), book.size)
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
        """Give the newest version to those that are free, drawn if not all can train."""
        services = self.run.services
        free = book.free(sorted(clients))
        for client in random.sample(free, min(len(free), book.room)):
            book.hand_out(client)
            services.work.give(client, task, self._model)
            self._since[client] = services.clock()
        if free:
            services.client_bell.ring()

    def _take_reports(self, book: WorkBook) -> None:
        """Take what clients report of their work."""
        for client, report in self.run.services.work.reports_of_run():
            own = book.trains_from(client)
            if own is None and report.state is not WorkState.GIVEN_UP:
                self._take_back(book, client, report)
            elif own == report.version and report.state is WorkState.READY:
                book.finish(client)
                self._end_work(client)
            elif own == report.version and report.state is WorkState.GIVEN_UP:
                withdrawal = report.withdrawal
                if withdrawal is None:  # the client was told, by this server as it started, that it is not asked
                    book.forget([client])
                else:
                    book.give_up(client)
                why = describe(withdrawal) or withdrawal.reason.value if withdrawal else "no reason"
                self._note_drop(client, f"withdrew from its work: {why}")

    def _take_back(self, book: WorkBook, client: int, report: WorkIn) -> None:
        """This server, or the client, was away: go on with what the client has."""
        if book.take_back(client, report.version, ready=report.state is WorkState.READY) and book.trains_from(client):
            self._since[client] = self.run.services.clock()

    def _drop_missing(self, book: WorkBook) -> None:
        """A client that left, takes too long, or has lost its work leaves its place to others."""
        services, settings = self.run.services, self.run.plan.settings
        for client in book.training_clients:
            report = services.work.reports.get(client)
            if services.presence.silent_for(client) > settings.liveness_seconds:
                self._forget(book, client, f"silent for more than {settings.liveness_seconds:g} s while it trained")
            elif services.clock() - self._since.get(client, 0.0) > settings.train_seconds + settings.step_seconds:
                self._forget(book, client, overdue(settings))
            elif report is None and services.work.task_of(client, "", 0) is None:
                self._forget(book, client, "has started again, without its work")
        for client in book.ready:
            if client not in services.work.reports:
                self._forget(book, client, "has started again, without its update")

    def _forget(self, book: WorkBook, client: int, why: str) -> None:
        book.forget([client])
        reports = self.run.services.work.reports
        if client in reports and reports[client].state is WorkState.TRAINING:
            del reports[client]  # it reports that again when it is back; an update that is ready stays so
        self._note_drop(client, why)

    def discard(self, book: WorkBook, task: Task, clients: Sequence[int]) -> None:
        """The updates of these clients were in a sum that stayed closed, and come to nothing."""
        book.spend(task, clients)
        for client in clients:
            self._note_drop(client, STAYED_CLOSED)

    def _end_work(self, client: int) -> None:
        self._since.pop(client, None)
        self.run.services.work.take_away(client)

    def _note_drop(self, client: int, why: str) -> None:
        self._end_work(client)
        name = self.run.services.names[client]
        self.run.event_log.add(ClientDropped(exchange=self.run.state.count, client=name, stage="train", reason=why))


class _BufferRunner:
    """Carries out the attempts at the sum of one buffer, as `AttemptRunner`."""

    def __init__(self, exchanges: BufferedExchanges, request: SecureRequest, book: WorkBook, retries: Attempts) -> None:
        self._exchanges = exchanges
        self._request = request
        self.book = book
        self.retries = retries
        self._past = exchanges.run.past_of(request.step)
        self._named = NamedUpdates()
        self._before = ""
        """Why the attempt before gave nothing."""

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        run, sums = self._exchanges.run, self._exchanges.sums
        if (row := next(self._past, None)) is not None:
            return await sums.go_on(self._request, row)
        ready = await self._ready(attempt)
        await run.pause(attempt)
        await run.clients.come_back(ready.cohort, len(ready.cohort))
        return await sums.begin(
            self._request, attempt, ready.cohort, all_survive=ready.all_survive, buffer=ready.buffer
        )

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        await self._exchanges.run.close_judged(task, end, self._request.model)

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        repeated = self.retries.same is not None
        lost = self._named.note_failure(task, end.survivors, again=again, repeated=repeated)
        self._exchanges.discard(self.book, task, lost)
        run = self._exchanges.run
        run.note_attempt(task, end, error, again=again)
        self._before = run.explain(task, end, error)
        return self._before

    async def _ready(self, attempt: Attempt) -> ReadyUpdates:
        if (updates := self._named.ready()) is not None:
            return updates
        clients = await self._exchanges.fill(self._request, self.book, self._before)
        return self.book.ready_updates(clients, all_survive=attempt.all_survive)
