"""Attempts at the secure sums of a simulation: the task, what its owners check, the round, and its result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.codec import AnyEncoding, Decoded, decode
from fedcore.errors import ProtocolViolation, RoundFailed, RunFailed
from fedcore.federation.admission.privacy import row_noise
from fedcore.federation.admission.refusals import refused_by_all
from fedcore.federation.admission.simulated import AdmittedExchange, SimulatedOwners
from fedcore.flower.apps.result_cache import AppResults
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.run.buffer import staleness_metrics
from fedcore.run.engine.announcing import Cohort, TaskFactory
from fedcore.run.engine.attempts import Attempt, attempts_at_sum
from fedcore.run.engine.events import Sums, sums_done
from fedcore.run.engine.outcome import AggregateResult, ExchangeFailure, ExchangeOutcome, ExchangeUsage
from fedcore.run.engine.state import RunState
from fedcore.run.exchange import ExchangeRequest, round_parameters
from fedcore.run.integer_means import rounded_line
from fedcore.run.retries import Attempts, final_reason
from fedcore.run.settings import JobSettings
from fedcore.secagg import RoundParameters, ServerRound, Verify, verifies
from fedcore.simulation.buffered import AsyncClientPool
from fedcore.simulation.devices.virtual_scheduler import UpdateStage, VirtualScheduler
from fedcore.simulation.downloads import SimulatedDownloads
from fedcore.simulation.dropouts import DropoutModel
from fedcore.simulation.memory_round import SIMULATED, MemoryRound
from fedcore.simulation.owners import FEDERATION, RUN, client_name
from fedcore.simulation.sessions.processes import ProcessSessions, SessionProcesses
from fedcore.simulation.sessions.sessions import InlineSessions, Members, SecureSessions, is_large, threads_for
from fedcore.simulation.workers.executor import ClientExecutor
from fedcore.simulation.workers.local_failures import NOTHING, LocalFailures
from fedcore.state import ModelState
from fedcore.wire.base import Scalar
from fedcore.wire.events import ClientDropped, EventSink, ExchangeFailed, Warned
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason


@dataclass(slots=True, kw_only=True)
class ExchangeWork:
    """What the clients of one exchange make, over all attempts at it.

    results
        What apps made: they run once for all attempts.
    trained
        Clients that have trained, on the virtual clock.
    pool
        The clients at work in a buffered run, which have made their updates before.
    enough
        With how many updates an attempt waits for no more; 0 to wait for all.
    error
        What ended the last attempt that gave nothing.
    failures
        Whose local work failed.
    limit
        Seconds of local work after which it has failed; None on the virtual clock, which knows no such seconds.
    """

    results: AppResults
    failures: LocalFailures
    limit: float | None = None
    trained: set[int] = field(default_factory=set)
    pool: AsyncClientPool | None = None
    enough: int = 0
    error: RoundFailed | None = None

    def run(
        self, executor: ClientExecutor, task: Task, model: ModelState | None, clients: Sequence[int]
    ) -> Iterator[tuple[int, LocalResult]]:
        """What clients' apps give, in any order."""
        if self.pool is not None:
            return self.pool.results(clients)
        return self.results.get_or_run(
            clients, lambda others: self.failures.results(executor, task, model, others, limit=self.limit)
        )


@dataclass(slots=True, kw_only=True)
class SecureAggregator:
    """The secure sums of one simulated run, of a cohort or of one group of it.

    state
        What the exchanges so far have taught and cost.
    virtual
        The virtual clock; None without one.
    downloads
        How models get to the clients.
    processes
        Those that hold the clients' sessions; None for this one.
    on_end
        Called with every exchange that has ended.
    """

    clients: int
    run_config: Mapping[str, Scalar]
    settings: JobSettings
    executor: ClientExecutor
    dropouts: DropoutModel
    identities: Mapping[int, Ed25519PrivateKey]
    owners: SimulatedOwners
    state: RunState
    virtual: VirtualScheduler | None
    downloads: SimulatedDownloads
    emit: EventSink
    clock: Callable[[], float]
    processes: SessionProcesses | None = None
    on_end: Callable[[Task, ExchangeOutcome], None] = lambda task, end: None

    @property
    def least(self) -> int:
        """The least cohort of the owners' policies, as a server's settings have it."""
        return self.owners.policy.min_cohort

    @property
    def tasks(self) -> TaskFactory:
        """Makes the tasks of the run's exchanges."""
        return TaskFactory(
            run=RUN,
            settings=self.settings,
            app_sha256=self.owners.app_sha256,
            run_config=self.run_config,
            state=self.state,
            number=self.state.next_exchange,
        )

    def attempts(self) -> Attempts:
        """The attempts at one sum."""
        return attempts_at_sum(self.settings, lambda: (self.clients, self.least))

    def work(self, results: AppResults, request: ExchangeRequest) -> ExchangeWork:
        """What the clients of an exchange make in which the app runs for each."""
        seconds = min(self.settings.train_seconds, request.timeout or self.settings.train_seconds)
        limit = seconds if self.virtual is None else None
        return ExchangeWork(results=results, failures=LocalFailures(client_name), limit=limit)

    def cohort(self, clients: Sequence[int], attempt: Attempt) -> Cohort:
        """These clients, for an attempt."""
        return Cohort(
            clients=clients,
            members=self.clients,
            least=self.least,
            previous=self.owners.chain.head,
            all_survive=attempt.all_survive,
        )

    def sum(self, task: Task, request: ExchangeRequest, work: ExchangeWork) -> tuple[ExchangeOutcome, Decoded | None]:
        """Carry out an attempt; raises RunFailed if no owner takes part."""
        encoding = task.encoding
        assert encoding is not None  # noqa: S101 - the task of a sum
        admitted = self._admit(task, request)
        parameters = self._parameters(task)
        stage = self._stage(task, work, max(self.downloads.bytes_to(i, request.model) for i in task.cohort))
        verify = cache(verifies)
        round_ = MemoryRound(
            server=ServerRound(parameters=parameters, roster=self.owners.roster.keys, verify=verify),
            sessions=self._sessions(parameters, encoding, task, verify),
            dropouts=self.dropouts.drops_at_step(task.cohort),
            admitted=admitted,
            on_dropout=partial(self.dropped, stage),
            failed=work.failures.note,
            leaves=lambda client: self._leaves(client, work),
            stragglers=None if stage is None else partial(stage.stragglers, up=encoding.words * 8),
        )
        unmasked = False
        survivors: tuple[int, ...] = ()
        try:
            with stage or nullcontext():
                starts = work.pool.starts(task) if work.pool is not None else None
                updates = partial(self._noised, work, task, request.model)
                total = round_.collect(encoding, request.model, updates, starts)
                survivors = round_.server.survivors().survivors
                round_.sign()
                unmasked = True
                round_.unmask(total)
            base = (request.model if request.base is None else request.base) if task.trains else None
            decoded = decode(
                encoding,
                total,
                survivors=len(survivors),
                base=base,
                out_path=None,
                sums=task.queries,
                threads=threads_for(encoding),
            )
        except ProtocolViolation as refusal:  # an owner's budget is spent as its update is about to leave
            raise self.refused(task, refusal) from refusal
        except RoundFailed as error:
            work.error = error
            self._warn_of(work)
            common = WithdrawalReason.POLICY if self.owners.all_refused else None
            failure = ExchangeFailure.of(error)
            return ExchangeOutcome(survivors=survivors, unmasked=unmasked, failure=failure, common=common), None
        self._warn_of(work)
        decoded = self._count(task, decoded, survivors, work)
        usage = ExchangeUsage(
            up=dict.fromkeys(survivors, encoding.words * 8),
            down={client: self.downloads.bytes_to(client, request.model) for client in survivors},
            updates=dict.fromkeys(survivors, encoding.words * 8),
        )
        total_ = AggregateResult.of(decoded, None, "")
        return ExchangeOutcome(survivors=survivors, unmasked=True, usage=usage, total=total_), decoded

    def _noised(
        self, work: ExchangeWork, task: Task, model: ModelState | None, clients: Sequence[int]
    ) -> Iterator[tuple[int, LocalResult]]:
        """What clients' apps give, with each client's share of the noise for rows that the message states."""
        noise = row_noise(task)
        for client, result in work.run(self.executor, task, model, clients):
            if noise is None:
                yield client, result
            elif result is NOTHING:
                yield client, LocalResult(examples=1, metrics=noise.alone(os.urandom))
            else:
                yield client, replace(result, metrics=noise.added_to(result.metrics, os.urandom))

    def close(self, task: Task, end: ExchangeOutcome) -> bool:
        """An attempt has ended; returns whether it evaluated the best model so far."""
        before = self.state.rounded
        best = self.state.take(task, end)
        if self.state.rounded and not before:
            self.emit(Warned(line=rounded_line(self.state.rounded)))
        self.on_end(task, end)
        return best

    def refused(self, task: Task, refusal: ProtocolViolation) -> RunFailed:
        """What ends a run that the owners do not take part in."""
        return refused_run(refusal, self.emit, exchange=task.exchange, server_round=task.server_round)

    def final_reason(self, task: Task, error: RoundFailed) -> str:
        """Why a run ends whose last attempt this was."""
        reason = final_reason(error, self.settings)
        if reason != str(error):
            return f"round {task.server_round} failed: {reason}"
        return f"round {task.server_round} failed {task.attempt} times, last: {self.owners.explain(error)}"

    def done(self, task: Task, sums: Sums, seconds: float) -> None:
        """Report an exchange that was completed. task: of its sum, or of the draw of its groups."""
        virtual = None if self.virtual is None else self.virtual.lap()
        spent = self.state.budget.epsilon_spent
        self.emit(sums_done(task, sums, client_name, seconds=seconds, epsilon_spent=spent, virtual_seconds=virtual))

    def _leaves(self, client: int, work: ExchangeWork) -> str:
        """Why a client leaves whose owner lets the server learn of failures."""
        error = work.failures.errors.get(client) if self.owners.policy.report_failures else None
        return "" if error is None else f"its local work failed: {error}"

    def _warn_of(self, work: ExchangeWork) -> None:
        if line := work.failures.report():
            self.emit(Warned(line=line))

    def _admit(self, task: Task, request: ExchangeRequest) -> AdmittedExchange:
        try:
            return self.owners.admit(task, request.model)
        except ProtocolViolation as refusal:
            raise self.refused(task, refusal) from refusal

    def _count(self, task: Task, decoded: Decoded, survivors: Sequence[int], work: ExchangeWork) -> Decoded:
        """These updates are in a sum that was opened."""
        if work.pool is None:
            if task.trains:
                self.executor.count(task.server_round, [one for one in survivors if one not in work.failures.errors])
            return decoded
        assert task.encoding is not None  # noqa: S101 - the task of a sum
        work.pool.spend(task, survivors, opened=True)
        work.pool.up = task.encoding.words * 8
        work.pool.summed()
        self.owners.drop_work(survivors)
        ages = task.staleness_of(survivors).values()
        return replace(decoded, metrics={**decoded.metrics, **staleness_metrics(ages)})

    def dropped(self, stage: UpdateStage | None, client: int, step: str, reason: str) -> None:
        """A client takes no part from here on."""
        name = client_name(client)
        if stage is not None and reason == SIMULATED:
            stage.vanished.add(step)
        self.emit(ClientDropped(exchange=self.state.count, client=name, stage=step, reason=reason))

    def _stage(self, task: Task, work: ExchangeWork, down: int) -> UpdateStage | None:
        """How the updates of a training exchange are waited for."""
        if self.virtual is None or not task.trains or work.pool is not None:
            return None
        return UpdateStage(time=self.virtual, task=task, down=down, enough=work.enough, trained=work.trained)

    def _sessions(
        self, parameters: RoundParameters, encoding: AnyEncoding, task: Task, verify: Verify
    ) -> SecureSessions:
        members = Members(
            parameters=parameters,
            identities={client: self.identities[client] for client in task.cohort},
            roster=self.owners.roster.keys,
            min_cohort=self.owners.policy.min_cohort,
            min_threshold=self.owners.policy.min_threshold,
        )
        if self.processes is None or is_large(encoding):
            return InlineSessions(members, verify)
        return ProcessSessions(members, self.processes)

    def _parameters(self, task: Task) -> RoundParameters:
        model_hash = bytes.fromhex(task.model.sha256) if task.model else None
        roster = self.owners.roster
        return round_parameters(task, federation=FEDERATION, roster_hash=roster.hash(), model_hash=model_hash)


def refused_run(refusal: ProtocolViolation, emit: EventSink, *, exchange: int, server_round: int) -> RunFailed:
    """What ends a run that the owners do not take part in."""
    reason = refused_by_all([refusal])
    emit(ExchangeFailed(exchange=exchange, server_round=server_round, reason=reason, retry=False))
    return RunFailed(reason)
