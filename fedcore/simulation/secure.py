"""Attempts at the secure sums of a simulation: the task, what its owners check, the round, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.codec import AnyEncoding, decode, joined, release_of
from fedcore.codec.privacy import PrivacyBudget
from fedcore.errors import ProtocolViolation, RoundFailed, RoundingTooCoarse, RunFailed, UpdateTooLarge
from fedcore.federation.admission.simulated import SimulatedOwners
from fedcore.flower.apps.result_cache import AppResults
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.run.buffer import staleness_metrics
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.exchange import ExchangeRequest, make_task, round_parameters
from fedcore.run.groups import GroupMembership
from fedcore.run.plain import mean_metrics
from fedcore.run.quorum import failures_for
from fedcore.run.retries import final_reason
from fedcore.run.settings import JobSettings
from fedcore.secagg import RoundParameters, ServerRound, Verify, verifies
from fedcore.simulation.buffered import Floor
from fedcore.simulation.devices.virtual_scheduler import UpdateStage, VirtualTime
from fedcore.simulation.downloads import Downloads
from fedcore.simulation.dropouts import Fates
from fedcore.simulation.memory_round import SIMULATED, MemoryRound
from fedcore.simulation.models import model_ref
from fedcore.simulation.owners import FEDERATION, RUN, client_name
from fedcore.simulation.sessions.processes import ProcessSessions, SessionProcesses
from fedcore.simulation.sessions.sessions import InlineSessions, Members, SecureSessions
from fedcore.simulation.sums import Summed, refused_run
from fedcore.simulation.workers.executor import ClientExecutor
from fedcore.state import ModelState
from fedcore.wire.control import Scalar, Task, is_training
from fedcore.wire.events import ClientDropped, EventSink, ExchangeDone


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt at an exchange. whole: all have to survive. survivors: whose updates were in its sum.

    trained: in this attempt or before it, on the virtual clock. enough: with how many updates no more are waited for.
    floor: where updates were made before. part: the group that it is for, if there is one.
    """

    number: int
    whole: bool
    kept: AppResults
    trained: set[int]
    enough: int = 0
    floor: Floor | None = None
    part: GroupMembership | None = None
    survivors: Sequence[int] = ()

    def results(
        self, executor: ClientExecutor, task: Task, model: ModelState | None, clients: Sequence[int]
    ) -> Iterator[tuple[int, LocalResult]]:
        """What clients' apps give, run once for all attempts; in any order."""
        if self.floor is not None:
            return self.floor.results(clients)
        return self.kept.get_or_run(clients, lambda others: executor.run(task, model, others))


@dataclass(slots=True, kw_only=True)
class SecureSums:
    """The secure sums of one simulated run, of a cohort or of one group of it.

    plan: how updates are encoded. account: the noise that was spent. virtual: the virtual clock, None without one.
    downloads: how models get to the clients. processes: those that hold the clients' sessions; None for this one.
    count: attempts so far, and draws. told: the configurations that went with the last training.
    """

    clients: int
    run_config: Mapping[str, Scalar]
    settings: JobSettings
    executor: ClientExecutor
    fates: Fates
    identities: Mapping[int, Ed25519PrivateKey]
    owners: SimulatedOwners
    plan: EncodingPlan
    account: PrivacyBudget
    virtual: VirtualTime | None
    downloads: Downloads
    emit: EventSink
    clock: Callable[[], float]
    processes: SessionProcesses | None = None
    count: int = field(default=0, init=False)
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, init=False)

    @property
    def least(self) -> int:
        """The least cohort of the owners' policies, as a server's settings have it."""
        return self.owners.policy.min_cohort

    def has_room(self, failures: int, n: int) -> bool:
        """Whether a sum over a whole cohort of `n` may hold so many clients that contribute nothing."""
        return failures <= failures_for(self.settings, n, self.least, self.clients, whole=True)

    def task(
        self,
        request: ExchangeRequest,
        encoding: AnyEncoding | None,
        *,
        attempt: int,
        whole: bool,
        floor: Floor | None = None,
        part: GroupMembership | None = None,
    ) -> Task:
        """What an attempt asks of its clients; with no encoding that of a draw."""
        return make_task(
            request,
            settings=self.settings,
            run=RUN,
            exchange=self.count,
            attempt=attempt,
            whole=whole,
            cohort=request.nodes,
            app_sha256=self.owners.app_sha256,
            run_config=self.run_config,
            model=model_ref(request.model),
            encoding=encoding,
            least_cohort=self.least,
            members=self.clients,
            previous=self.owners.chain.head,
            buffer=floor.book.starts(sorted(request.nodes)) if floor is not None else None,
            cut=part.cut if part else None,
            group=part.group if part else None,
            places=part.places if part else None,
        )

    def sum(self, request: ExchangeRequest, attempt: Attempt) -> Summed:
        """One attempt at a sum; raises RoundFailed, and ProtocolViolation where no owner takes part."""
        layout = request.model.layout if request.model and is_training(request.message_type) else None
        size = len(request.nodes)
        model = model_ref(request.model) if self.settings.compresses else None
        encoding = self.plan.encoding(
            request.message_type,
            layout,
            size,
            self.clients,
            whole=attempt.whole,
            model=model.sha256 if model else "",
        )
        self.account.admit(release_of(encoding))
        task = self.task(
            request, encoding, attempt=attempt.number, whole=attempt.whole, floor=attempt.floor, part=attempt.part
        )
        admitted = self.owners.admit(task, request.model)
        parameters = self._parameters(task)
        stage = self._stage(task, attempt, max(self.downloads.bytes_to(i, request.model) for i in task.cohort))
        verify = cache(verifies)
        round_ = MemoryRound(
            server=ServerRound(parameters=parameters, roster=self.owners.roster.keys, verify=verify),
            sessions=self._sessions(parameters, task, verify),
            doomed=self.fates.doomed(task.cohort),
            admitted=admitted,
            on_dropout=partial(self.dropped, stage),
            late=None if stage is None else partial(stage.late, up=encoding.words * 8),
        )
        work = partial(attempt.results, self.executor, task, request.model)
        starts = attempt.floor.starts(task) if attempt.floor is not None else None
        with stage or nullcontext():
            total = round_.collect(encoding, request.model, work, starts)
            self.account.spend(release_of(encoding))
            attempt.survivors = survivors = round_.unmask(total)
        base = (request.model if request.base is None else request.base) if layout else None
        try:
            decoded = decode(encoding, total, survivors=len(survivors), base=base, out_path=None, sums=task.queries)
        except UpdateTooLarge as error:
            self.plan.learn_overflow(request.message_type, encoding, error.statistics)
            raise
        except RoundingTooCoarse as error:
            self.plan.learn_coarse(request.message_type, encoding, error.statistics)
            raise
        staleness = task.staleness_of(survivors)
        if attempt.floor is not None:
            decoded = replace(decoded, metrics={**decoded.metrics, **staleness_metrics(staleness.values())})
            attempt.floor.spend(survivors, counted=True)
            attempt.floor.up = encoding.words * 8
            attempt.floor.summed()
            self.owners.drop_work(survivors)
        elif task.trains:
            self.executor.count(request.server_round, survivors)
        self.told = task.configs if task.trains else self.told
        return Summed(encoding=encoding, decoded=decoded, survivors=survivors, staleness=staleness)

    def learn(self, request: ExchangeRequest, found: Sequence[Summed]) -> None:
        """What the sums told together is what the next encodings are made from."""
        statistics = joined([one.decoded.statistics for one in found])
        self.plan.learn(request.message_type, found[0].encoding, replace(found[0].decoded, statistics=statistics))

    def refused(self, request: ExchangeRequest, refusal: ProtocolViolation) -> RunFailed:
        """What ends a run that the owners do not take part in."""
        return refused_run(refusal, self.emit, exchange=self.count, server_round=request.server_round)

    def final_reason(self, request: ExchangeRequest, attempt: Attempt, error: RoundFailed) -> str:
        """Why a run ends whose last attempt this was."""
        reason = final_reason(error, self.settings)
        if reason != str(error):
            return f"round {request.server_round} failed: {reason}"
        return f"round {request.server_round} failed {attempt.number} times, last: {self.owners.explain(error)}"

    def dropped(self, stage: UpdateStage | None, client: int, step: str, reason: str) -> None:
        """A client takes no part from here on."""
        name = client_name(client)
        if stage is not None and reason == SIMULATED:
            stage.vanished.add(step)
        self.emit(ClientDropped(exchange=self.count, client=name, stage=step, reason=reason))

    def done(self, request: ExchangeRequest, found: Sequence[Summed], exchange: int) -> None:
        """Tell of an exchange that was completed, in one sum or in those of groups."""
        decoded, survivors = [one.decoded for one in found], sorted(i for one in found for i in one.survivors)
        names = [client_name(i) for i in survivors]
        self.emit(
            ExchangeDone(
                exchange=exchange,
                server_round=request.server_round,
                message_type=request.message_type,
                aggregation=self.settings.aggregation,
                survivors=names,
                examples=sum(one.examples for one in decoded),
                metrics=mean_metrics(decoded) if len(found) > 1 else dict(decoded[0].metrics),
                clipped=sum(sum(one.statistics.clipped) for one in decoded),
                lost_norm=max(one.lost_norm for one in decoded),
                failures=sum(one.failures for one in decoded),
                metrics_agree=all(one.names is not None for one in decoded),
                seconds=sum(one.seconds for one in found),
                virtual_seconds=None if self.virtual is None else self.virtual.lap(),
                bytes_up={client_name(i): one.encoding.words * 8 for one in found for i in one.survivors},
                bytes_down={client_name(i): self.downloads.bytes_to(i, request.model) for i in survivors},
                epsilon_spent=self.account.epsilon_spent,
                staleness={client_name(i): count for one in found for i, count in one.staleness.items()},
                groups=len(found),
            )
        )

    def _stage(self, task: Task, attempt: Attempt, down: int) -> UpdateStage | None:
        """How the updates of a training exchange are waited for."""
        if self.virtual is None or not task.trains or attempt.floor is not None:
            return None
        return UpdateStage(time=self.virtual, task=task, down=down, enough=attempt.enough, trained=attempt.trained)

    def _sessions(self, parameters: RoundParameters, task: Task, verify: Verify) -> SecureSessions:
        members = Members(
            parameters=parameters,
            identities={client: self.identities[client] for client in task.cohort},
            roster=self.owners.roster.keys,
            min_cohort=self.owners.policy.min_cohort,
            min_threshold=self.owners.policy.min_threshold,
        )
        return InlineSessions(members, verify) if self.processes is None else ProcessSessions(members, self.processes)

    def _parameters(self, task: Task) -> RoundParameters:
        model_hash = bytes.fromhex(task.model.sha256) if task.model else None
        roster = self.owners.roster
        return round_parameters(task, federation=FEDERATION, roster_hash=roster.hash(), model_hash=model_hash)
