"""Exchanges of one sum, in a buffered run the sum of the clients that are done by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedcore.codec import Decoded
from fedcore.errors import CohortTooSmall, NothingContributed, RoundFailed, RunFailed, TooFewContributed
from fedcore.flower.apps.result_cache import AppResults
from fedcore.run.buffer import STAYED_CLOSED, NamedUpdates, ReadyUpdates, WorkBook, model_of
from fedcore.run.engine.attempts import Attempt, run_attempts, run_now
from fedcore.run.engine.outcome import ExchangeFailure, ExchangeOutcome
from fedcore.run.exchange import ExchangeRequest, make_work
from fedcore.run.requirements import min_clients_for
from fedcore.run.retries import Attempts, attempt_ended
from fedcore.simulation.buffered import AsyncClientPool
from fedcore.simulation.models import model_ref
from fedcore.simulation.owners import RUN, client_name
from fedcore.simulation.secure import ExchangeWork, SecureAggregator
from fedcore.simulation.workers.local_failures import LocalFailures
from fedcore.wire.tasks import ModelRef, Task, is_training


@dataclass(slots=True, kw_only=True)
class CohortAggregator:
    """The exchanges of a run in which a cohort is one sum.

    seed
        Draws which clients get work if not all can.
    pool
        The clients at work, of a run in which no round waits for them.
    """

    aggregator: SecureAggregator
    seed: int
    pool: AsyncClientPool | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        aggregator = self.aggregator
        if aggregator.virtual is not None and aggregator.settings.buffered:
            self.pool = AsyncClientPool(
                executor=aggregator.executor,
                book=WorkBook.of(
                    aggregator.settings, aggregator.clients, aggregator.least, spent=aggregator.state.spent
                ),
                virtual=aggregator.virtual,
                seed=self.seed,
                take=aggregator.owners.take_work,
                drop=self._lose_work,
                failures=LocalFailures(client_name),
            )

    def exchange(self, request: ExchangeRequest, results: AppResults) -> tuple[Decoded, bool]:
        """One exchange: its sum, and whether it evaluated the best model so far; raises RunFailed."""
        pool = self.pool if is_training(request.message_type) else None
        runner = _SimulatedCohort(
            aggregator=self.aggregator,
            request=request,
            model=model_ref(request.model),
            work=self._work(request, results, pool),
            retries=self.aggregator.attempts(),
            pool=pool,
        )
        try:
            if pool is not None:
                self._publish(pool, request)
            task, end = run_now(run_attempts(runner, runner.retries))
        except RoundFailed as error:
            raise self._failure(error, runner.work) from runner.work.error
        self.aggregator.done(task, [(task, end)], self.aggregator.clock() - runner.started)
        assert runner.decoded is not None  # noqa: S101 - of an exchange that succeeded
        return runner.decoded, runner.best

    def _work(self, request: ExchangeRequest, results: AppResults, pool: AsyncClientPool | None) -> ExchangeWork:
        if pool is None:
            return self.aggregator.work(results, request)
        return ExchangeWork(results=results, failures=pool.failures, pool=pool)

    @staticmethod
    def _failure(error: RoundFailed, work: ExchangeWork) -> BaseException:
        """What ends the run: that the clients' own work failed, as the first of them says it, or else the round."""
        first = work.failures.first
        if first is not None and isinstance(work.error, NothingContributed | TooFewContributed | CohortTooSmall):
            return first
        return RunFailed(str(error), check=error.check)

    def _publish(self, pool: AsyncClientPool, request: ExchangeRequest) -> None:
        """The strategy's model is the newest version from here on."""
        model = model_of(request)
        work = make_work(
            request,
            settings=self.aggregator.settings,
            run=RUN,
            exchange=self.aggregator.state.count + 1,
            app_sha256=self.aggregator.owners.app_sha256,
            run_config=self.aggregator.run_config,
            model=model_ref(model),
        )
        pool.publish(model, work)
        pool.up = pool.up or 8 * sum(spec.size for spec in model.layout.specs)  # a first exchange's fields

    def _lose_work(self, client: int, why: str) -> None:
        self.aggregator.owners.drop_work([client])
        self.aggregator.dropped(None, client, "train", why)


@dataclass(slots=True, kw_only=True)
class _SimulatedCohort:
    """Carries out the attempts at one sum, as `AttemptRunner`."""

    aggregator: SecureAggregator
    request: ExchangeRequest
    model: ModelRef | None
    work: ExchangeWork
    retries: Attempts
    pool: AsyncClientPool | None
    started: float = field(default=0.0, init=False)
    decoded: Decoded | None = field(default=None, init=False)
    best: bool = field(default=False, init=False)
    named: NamedUpdates = field(default_factory=NamedUpdates, init=False)
    before: str = field(default="", init=False)
    """Why the attempt before gave nothing."""

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        aggregator, pool = self.aggregator, self.pool
        cohort = aggregator.cohort(attempt.same or self.request.nodes, attempt)
        if pool is not None:
            ready = self._ready(pool, attempt)
            cohort = replace(cohort, clients=ready.cohort, buffer=ready.buffer, all_survive=ready.all_survive)
        elif attempt.same is None and aggregator.virtual is not None:
            try:
                cohort = replace(cohort, clients=self._present(cohort.clients))
            except RoundFailed as error:
                self.work.error = error
                task = aggregator.tasks.make(self.request, self.model, cohort, attempt=attempt.number)
                return task, ExchangeOutcome(failure=ExchangeFailure.of(error))
        request = replace(self.request, nodes=tuple(cohort.clients))
        task = aggregator.tasks.for_sum(request, self.model, cohort, attempt=attempt.number)
        self.started = aggregator.clock()
        end, self.decoded = aggregator.sum(task, request, self.work)
        return task, end

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        self.best = self.aggregator.close(task, end)

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        if self.pool is not None:
            repeated = self.retries.same is not None
            lost = self.named.note_failure(task, end.survivors, again=again, repeated=repeated)
            self.pool.spend(task, lost)
            for client in lost:
                self.pool.drop(client, STAYED_CLOSED)
        reason, survivors = self.aggregator.owners.explain(error), len(end.survivors)
        event = attempt_ended(error, reason, task.exchange, task.server_round, survivors, again=again)
        self.aggregator.emit(event)
        self.before = self.aggregator.final_reason(task, error)
        return self.before

    def _ready(self, pool: AsyncClientPool, attempt: Attempt) -> ReadyUpdates:
        """Of a buffered run: the updates that are summed next."""
        if (updates := self.named.ready()) is not None:
            return updates
        return pool.book.ready_updates(pool.fill(self.request.nodes, self.before), all_survive=attempt.all_survive)

    def _present(self, clients: Sequence[int]) -> Sequence[int]:
        """Those who are there on the virtual clock, and others in their place; raises RoundFailed for too few."""
        aggregator, size = self.aggregator, len(clients)
        assert aggregator.virtual is not None  # noqa: S101 - called with the clock alone
        least = min_clients_for(size, aggregator.settings, aggregator.clients, aggregator.least)
        extra = aggregator.virtual.beyond(size) if is_training(self.request.message_type) else 0
        self.work.enough = size if extra else 0
        return aggregator.virtual.cohort(clients, range(1, aggregator.clients + 1), least=least, extra=extra)
