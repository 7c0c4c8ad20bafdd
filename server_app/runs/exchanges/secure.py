"""The secure exchanges of one run: attempts at a sum, until there is one or no other attempt can help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.errors import RoundFailed
from fedcore.federation import Roster
from fedcore.federation.admission.checks import DIFFERENCING
from fedcore.run.engine.announcing import Cohort
from fedcore.run.engine.attempts import Attempt, attempts_at_sum, run_attempts
from fedcore.run.engine.events import sums_done
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.exchange import ExchangeRequest
from fedcore.run.groups import GroupMembership
from fedcore.run.retries import Attempts
from fedcore.wire.tasks import ModelRef, StoredTask, Task, is_training
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.secure import SecureExchange
from server_app.runs.exchanges.slow_lines import Sizes
from server_app.runs.files.downloads import SentModel
from server_app.runs.known_statistics import refused_query_advice
from server_app.runs.run_context import RunContext
from server_app.storage.tables import ExchangeRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureRequest:
    """One exchange that the ServerApp asks for.

    step: of the journal.
    sent: the model, as clients get it.
    change: where the change that the sum makes to it goes, if it is asked for.
    """

    step: int
    exchange: ExchangeRequest
    sent: SentModel | None
    change: Path | None = None

    @property
    def model(self) -> Path | None:
        """The file that clients train from."""
        return self.sent.path if self.sent is not None else None

    @property
    def announced(self) -> ModelRef | None:
        """What clients hear of it."""
        return self.sent.reference if self.sent is not None else None


class SecureExchanges:
    """Carries them out: one after the other, but for the groups of a draw.

    led: numbers of those whose sum may still come, in whatever stage they are.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self.led: set[int] = {row.exchange for row in run.past if row.result is None}

    async def exchange(self, request: SecureRequest) -> int:
        """Attempts until one succeeds: its number; raises RoundFailed."""
        runner = _CohortRunner(self._run, self, request)
        try:
            task, end = await run_attempts(runner, self.attempts())
        except RoundFailed as error:
            if advice := await self._advice(runner.refused_query):
                raise RoundFailed(f"{error}. {advice}", check=error.check) from error
            raise
        self.note_success(task, end)
        return task.exchange

    async def _advice(self, query: Task | None) -> str:
        """What can be done about a query that was refused since others were asked before."""
        if query is None:
            return ""
        services = self._run.services
        members = [member.id for member in services.roster.current.members]
        return await refused_query_advice(services.store, self._run.plan.app, query.cohort, members, services.names)

    def attempts(self) -> Attempts:
        """The attempts at one sum, of which there was none yet."""
        services = self._run.services
        return attempts_at_sum(
            self._run.plan.settings, lambda: (len(services.roster.current.members), services.min_cohort)
        )

    async def begin(
        self, request: SecureRequest, attempt: Attempt, cohort: Sequence[int], **more: Any
    ) -> tuple[Task, ExchangeOutcome]:
        """Announce and lead a new attempt; raises BudgetSpent. more: other fields of its `Cohort`."""
        previous = await self.head()
        with self._run.services.roster.hold() as roster:
            whom = self.cohort(roster, cohort, previous, **{"all_survive": attempt.all_survive, **more})
            task = self._run.tasks.for_sum(request.exchange, request.announced, whom, attempt=attempt.number)
            if task.model is not None:
                await self._run.check_memory(task.model.size)
            return task, await self._lead(request, task, roster, None)

    async def go_on(
        self, request: SecureRequest, row: ExchangeRow, group: GroupMembership | None = None
    ) -> tuple[Task, ExchangeOutcome]:
        """What an attempt came to that an earlier process began, or comes to now."""
        task = StoredTask.model_validate(row.task)
        if group is not None:
            task = task.model_copy(update={"places": list(group.tickets)})
        if row.result is not None:
            self._run.note_start(task, model=task.model.sha256 if task.model else None)
            return task, ExchangeOutcome.from_json(row.result)
        with self._run.services.roster.hold(task.roster) as roster:
            return task, await self._lead(request, task, roster, row)

    async def head(self) -> str:
        """The head of the transcript, at which an exchange is opened."""
        run = self._run.plan.run
        return await self._run.services.store.last_record(led=[(run, number) for number in self.led])

    def sizes(self, request: SecureRequest, clients: int) -> Sizes:
        """What each client downloads and uploads in the next sum over so many."""
        kind, model, sent = request.exchange.message_type, request.exchange.model, request.sent
        if sent is None or model is None or not is_training(kind):
            return Sizes()
        update = self._run.tasks.state.encodings.update_bytes(
            kind,
            model.layout,
            clients,
            len(self._run.services.roster.members),
            model=sent.reference.sha256,
        )
        return Sizes(down=sent.fetched, up=update)

    def cohort(self, roster: Roster, clients: Sequence[int], previous: str, **more: Any) -> Cohort:
        """These clients, out of a roster."""
        members, least = len(roster.members), self._run.services.min_cohort
        return Cohort(clients=clients, members=members, least=least, previous=previous, roster=roster.version, **more)

    async def _lead(
        self, request: SecureRequest, task: Task, roster: Roster, row: ExchangeRow | None
    ) -> ExchangeOutcome:
        run = self._run
        context = ExchangeContext(
            services=run.services,
            task=task,
            settings=run.plan.settings,
            model=request.model,
            difference=request.sent.difference if request.sent is not None else None,
            base=request.sent.base if request.sent is not None else None,
            change=request.change,
            add_event=run.event_log.add,
            step=request.step,
            enough=0 if task.group or task.buffer else run.clients.enough(request.exchange.nodes, task.message_type),
        )
        exchange = SecureExchange(
            context,
            federation=roster.federation,
            roster=roster.keys,
            roster_hash=roster.hash(),
            randomness=run.services.randomness,
        )
        self._run.note_start(task, model=task.model.sha256 if task.model else None)
        self.led.add(task.exchange)
        try:
            return await run.lead(exchange, row)
        finally:
            self.led.discard(task.exchange)

    def note_success(self, task: Task, end: ExchangeOutcome) -> None:
        """Say what came of an exchange that gave its sum."""
        run = self._run
        spent = run.state.budget.epsilon_spent
        run.event_log.add(sums_done(task, [(task, end)], run.name, epsilon_spent=spent))


class _CohortRunner:
    """Carries out the attempts at the sum of a cohort, as `AttemptRunner`."""

    def __init__(self, run: RunContext, sums: SecureExchanges, request: SecureRequest) -> None:
        self._run = run
        self._sums = sums
        self._request = request
        self._past = run.past_of(request.step)
        self.refused_query: Task | None = None
        """The last attempt, if it was a query that some refused for what it reveals with earlier ones."""

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        if (row := next(self._past, None)) is not None:
            return await self._sums.go_on(self._request, row)
        await self._run.pause(attempt)
        request, clients = self._request.exchange, self._run.clients
        kind = request.message_type
        sizes = self._sums.sizes(self._request, len(request.nodes))
        cohort = await clients.cohort(request.nodes, attempt.number, message_type=kind, same=attempt.same, sizes=sizes)
        return await self._sums.begin(self._request, attempt, cohort)

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        await self._run.close_judged(task, end, self._request.model)

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        self._run.note_attempt(task, end, error, again=again)
        differs = any(withdrawal.check == DIFFERENCING for withdrawal in end.withdrawals.values())
        self.refused_query = task if differs and task.queries else None
        return self._run.explain(task, end, error)
