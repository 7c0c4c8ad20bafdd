"""A whole simulated run: answers the requests of the app's ServerApp by exchanges in memory."""

from __future__ import annotations

import contextlib
import hmac
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.admission.agreed import Agreed
from fedcore.admission.messages import check_message
from fedcore.admission.refusals import refused_by_all
from fedcore.admission.simulated import SimulatedOwners
from fedcore.admission.tasks import refused_choices
from fedcore.attempts import Attempts, attempt_ended, final_reason
from fedcore.best import BestRule
from fedcore.buffered import staleness_metrics
from fedcore.codec import AnyEncoding, decode, joined, release_of
from fedcore.config import JobSettings, planned_rounds
from fedcore.errors import (
    AppError,
    ConfigurationError,
    EnoughFound,
    ProtocolViolation,
    RoundFailed,
    RunFailed,
    UpdateTooLarge,
)
from fedcore.events import (
    ClientDropped,
    EventSink,
    ExchangeDone,
    ExchangeFailed,
    FiguresFound,
    PrivacyTerms,
    RunEnded,
    RunStarted,
    Warned,
    ignore,
)
from fedcore.exchange import (
    EncodingPlan,
    ExchangeReply,
    ExchangeRequest,
    failures_for,
    make_draw,
    make_task,
    make_work,
    round_parameters,
)
from fedcore.federation import Member, Policy, Roster
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.kept_results import KeptResults
from fedcore.flower.plain_request import PlainRequest
from fedcore.flower.results import Results
from fedcore.flower.robust import Groups
from fedcore.flower.sampling import waited_for
from fedcore.flower.serverside import ServerAppOutcome, run_server_app
from fedcore.flower.tensor_app import LocalResult
from fedcore.groups import Part, too_few_groups
from fedcore.needs import check_asked, check_needs, cut_for, least_clients, least_of
from fedcore.operator_wire import RunStatus
from fedcore.plain_exchange import PlainReply, mean_metrics
from fedcore.privacy import PrivacyBudget
from fedcore.secagg import ClientSession, RoundParameters, ServerRound, Verify, verifies
from fedcore.simulation.buffered import Floor, usual_devices
from fedcore.simulation.crew import Crew, OneByOne
from fedcore.simulation.devices import Devices
from fedcore.simulation.fates import Fates, RandomDrops
from fedcore.simulation.kept import NotedCrew
from fedcore.simulation.models import BestModel, model_ref
from fedcore.simulation.plain import PlainSimulation
from fedcore.simulation.resume import Heard, Resumable, StateFolder, identity_of
from fedcore.simulation.rounds import SIMULATED, MemoryRound
from fedcore.simulation.sums import Summed, group_failed
from fedcore.simulation.waiting import UpdateStage, VirtualTime
from fedcore.state import ModelState
from fedcore.wire import Scalar, Task, is_query, is_training

FEDERATION = "simulation"
RUN = "simulation"


@dataclass(slots=True, kw_only=True)
class Simulation:
    """The exchanges of one simulated run; an `ExchangeBackend` for the app's ServerApp.

    drop: probability that a client drops out of an exchange, at a step drawn at random; `seed` repeats it. fates: who
    drops out in place of that. devices: how fast the clients are and when they are there, on the virtual clock; None
    for no such clock, or `usual_devices` where no round waits for its clients (asynchrony = "buffered"). crew: who runs
    the clients' apps; None for this process, where `clients_at_once` of them train at once (0: as many as pay, 1: one
    by one) if the app allows it. emit: takes the events.
    policy: what every client's owner insists on. None: a stock policy, but who runs all of it may set its config and
    read single updates; what the owners of a federation would refuse of that is said in a warning. folder: where the
    ServerApp runs, as on a server in one of its own; None for the current one. Clients train in the current one.
    initial: what the ServerApp's strategy starts from in place of its own model. results: what the ServerApp found, as
    `results_of` has it, also of a run that failed. enough: whether what the ServerApp found ends the run, with the
    model that it has then. told: the configurations that went with the last secure training.
    best: the best model so far by `best-model`. state: a folder in which the run keeps all that it takes to go on, and
    goes on where it holds the run already (`resume`); None for a run that lives as long as its process.
    """

    app: FlowerApp
    clients: int
    run_config: Mapping[str, Scalar]
    settings: JobSettings
    drop: float = 0.0
    seed: int = 0
    fates: Fates | None = None
    devices: Devices | None = None
    crew: Crew | None = None
    clients_at_once: int = 0
    policy: Policy | None = None
    folder: Path | None = None
    state: Path | None = None
    initial: ModelState | None = None
    emit: EventSink = ignore
    enough: Callable[[FiguresFound], bool] | None = None
    clock: Callable[[], float] = time.monotonic
    results: Results = field(default_factory=dict, init=False)
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, init=False)
    best: BestModel | None = field(default=None, init=False)
    _crew: Crew = field(init=False)
    _fates: Fates = field(init=False)
    _identities: dict[int, Ed25519PrivateKey] = field(init=False)
    _owners: SimulatedOwners = field(init=False)
    _plan: EncodingPlan = field(init=False)
    _account: PrivacyBudget = field(init=False)
    _exchange: int = field(default=0, init=False)
    _home: Path = field(init=False)
    _kept_in: StateFolder | None = field(default=None, init=False)
    _virtual: VirtualTime | None = field(default=None, init=False)
    _plain_exchanges: PlainSimulation = field(init=False)
    _evaluated: tuple[int, ModelState] | None = field(default=None, init=False)
    _unjudged: str = field(default="", init=False)
    _enough: str = field(default="", init=False)
    _floor: Floor | None = field(default=None, init=False)
    _warned_of_best: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.clients < 1 or not 0 <= self.drop < 1:
            raise ConfigurationError("a simulation needs at least 1 client and a drop probability in [0, 1)")
        if self.settings.aggregation == "secure" and self.clients < 2:
            raise ConfigurationError("secure aggregation needs at least 2 clients: the sum of one is its own update")
        self._home = Path.cwd()
        ids = range(1, self.clients + 1)
        self._crew = self.crew or OneByOne(app=self.app, clients=self.clients, at_once=self.clients_at_once)
        self._crew.hears(lambda line: self.emit(Warned(line=line)))
        self._fates = self.fates or RandomDrops(self.drop, self.seed)
        if self.state is not None:
            self._kept_in = StateFolder.open(self.state, identity_of(self))
            self._crew, self.emit = NotedCrew(self._crew), Heard(self.emit)
        self._identities = {i: self._key(i) for i in ids}
        self._owners = self._simulated_owners()
        if self.clients > 1:  # one alone is no federation, and every client of one is centralized training
            check_needs(self.settings, self.clients, self._least)
        self._plan = EncodingPlan(self.settings, self._least)
        self._account = PrivacyBudget(self._plan.privacy)
        devices = self.devices or (usual_devices(self.seed) if self.settings.buffered else None)
        if devices is not None:
            if self.settings.groups > 1:
                raise ConfigurationError(
                    "groups work at the same time, which the virtual clock of devices does not know yet; leave the "
                    "devices out, or set groups = 1"
                )
            self._virtual = VirtualTime(devices=devices, settings=self.settings, run_config=self.run_config)
            self._floor = self._new_floor(self._virtual) if self.settings.buffered else None
        self._plain_exchanges = PlainSimulation(
            run=RUN,
            crew=self._crew,
            clients=range(1, self.clients + 1),
            settings=self.settings,
            run_config=self.run_config,
            app_sha256=self._owners.app_sha256,
            admit=self._admit_messages,
            fates=self._fates,
            virtual=self._virtual,
            emit=self.emit,
            name=client_name,
            clock=self.clock,
        )

    def run(self) -> ServerAppOutcome:
        """Run the app's ServerApp over simulated exchanges to its end."""
        self.emit(
            RunStarted(
                app=self.app.name,
                aggregation=self.settings.aggregation,
                rounds=planned_rounds(self.run_config),
                privacy=PrivacyTerms.of(self._plan.privacy),
            )
        )
        if self.settings.over_selection and self._virtual is None:
            self.emit(
                Warned(line="over-selection changes nothing without devices, where no client is slower than others")
            )
        if self.policy is None:
            self._warn_of_choices()
        backend: Simulation | Resumable = self
        with contextlib.ExitStack() as stack:
            if self._kept_in is not None:
                stack.enter_context(self._kept_in)
                backend = Resumable(simulation=self, folder=self._kept_in)
                backend.begin()
            if self._floor is not None:
                stack.callback(self._floor.close)
            stack.enter_context(contextlib.chdir(self.folder or self._home))
            outcome = run_server_app(
                self.app,
                backend=backend,
                run=RUN,
                run_config=dict(self.run_config),
                aggregation=self.settings.aggregation,
                most_nodes=self.clients,
                on_results=self.results.update,
                initial=self.initial,
                on_refusal=self.refuse,
                noised=self.settings.private,
                buffered=self.settings.buffered,
                groups=Groups.of(self.settings),
            )
        self._warn_unjudged()
        self.emit(RunEnded(status=RunStatus.FINISHED, reason=outcome.stopped))
        return outcome

    def refuse(self, error: AppError) -> None:
        """Code of the app wants more than the mean of a secure sum: the run ends."""
        raise error

    def nodes(self) -> list[int]:
        members = list(range(1, self.clients + 1))
        if self._virtual is None or self._floor is not None:  # who comes later is given work then
            return members
        least = least_clients(self.settings, self.clients, self._least)
        return self._virtual.nodes(members, least=least, wanted=waited_for())

    def found(self, figures: FiguresFound) -> None:
        """Tell of what the strategy made of replies; a model may be judged by it."""
        self.emit(figures)
        if self.enough is not None and self.enough(figures):
            self._enough = f"what was found in round {figures.server_round} was enough"
        if figures.source == "evaluate" and self._evaluated is not None and self._evaluated[0] == figures.server_round:
            self._judge(figures.metrics)

    def _check_enough(self) -> None:
        if self._enough:
            raise EnoughFound(self._enough)

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """One exchange, tried again with new dropouts after a failure; raises EnoughFound to end the run."""
        self._check_enough()
        self._warn_unjudged()
        if self._account.withholds(is_training(request.message_type) or is_query(request.message_type)):
            return []
        self._check_asked(len(request.nodes), request.message_type)
        for message_type, nodes in request.ahead.items():
            if not self._account.withholds(is_training(message_type)):
                self._check_asked(nodes, message_type)
        if self.settings.groups > 1 and is_training(request.message_type):
            with KeptResults() as kept, contextlib.chdir(self._home):
                return self._grouped(request, kept)
        attempts = Attempts(settings=self.settings, has_room=self._has_room)
        trained: set[int] = set()
        floor = self._floor if is_training(request.message_type) else None
        with KeptResults() as kept, contextlib.chdir(self._home):
            if floor is not None:
                self._publish(floor, request)
            for number in itertools.count(1):
                cohort, whole = attempts.same or request.nodes, attempts.whole
                if floor is not None and attempts.same is None:
                    cohort, whole = floor.cohort(request.nodes), whole or bool(floor.named)
                asked = replace(request, nodes=cohort)
                self._exchange += 1
                attempt = _Attempt(number=number, whole=whole, kept=kept, trained=trained, floor=floor)
                try:
                    asked = self._present(asked, attempt, again=attempts.same is not None)
                    return self._secure(asked, attempt)
                except ProtocolViolation as refusal:
                    raise self._refused(request, refusal) from refusal
                except RoundFailed as error:
                    again = attempts.go_on(error, asked.nodes, attempt.survivors, free=False)
                    if floor is not None and attempts.same is None:
                        self._keep_or_spend(floor)
                    if not self._try_again(request, attempt, error, again and not self._owners.all_refused):
                        raise RunFailed(self._final_reason(request, attempt, error)) from error
        raise AssertionError("there is always another number")

    def _grouped(self, request: ExchangeRequest, kept: KeptResults) -> list[ExchangeReply]:
        """A draw, and the sums of its groups, one after the other; raises RunFailed where too few have one."""
        self._exchange += 1
        drawn, found, failed = self._exchange, [], {}
        cut, needed = cut_for(self.settings, len(request.nodes), self.clients, self._least)
        try:
            draw = make_draw(self._task(request, None, attempt=1, whole=False), cut, needed=needed)
            parts = self._owners.draw(draw, self._identities)
        except ProtocolViolation as refusal:
            raise self._refused(request, refusal) from refusal
        for part in parts:
            try:
                found.append(self._of_group(replace(request, nodes=tuple(part.members)), kept, part))
            except RunFailed as error:
                failed[part.group.number] = str(error)
        if found:
            self._learn(request, found)
        if len(found) < self.settings.least_groups:
            raise RunFailed(too_few_groups(len(parts), self.settings.least_groups, failed))
        self._done(request, found, drawn)
        return [ExchangeReply.of_cohort(one.decoded) for one in found]

    def _of_group(self, request: ExchangeRequest, kept: KeptResults, part: Part) -> Summed:
        """Attempts at the sum of one group; raises RunFailed."""
        attempts, started = Attempts(settings=self.settings, has_room=self._has_room), self.clock()
        for number in itertools.count(1):
            self._exchange += 1
            asked = replace(request, nodes=attempts.same or request.nodes)
            attempt = _Attempt(number=number, whole=attempts.whole, kept=kept, trained=set(), part=part)
            try:
                return replace(self._sum(asked, attempt), seconds=self.clock() - started)
            except ProtocolViolation as refusal:
                raise self._refused(request, refusal) from refusal
            except RoundFailed as error:
                again = attempts.go_on(error, asked.nodes, attempt.survivors, free=False)
                again = again and not self._owners.all_refused
                reason, names = self._owners.explain(error), [client_name(client) for client in attempt.survivors]
                self.emit(group_failed(part.group, self._exchange, request.server_round, names, reason, again))
                if not again:
                    raise RunFailed(self._final_reason(request, attempt, error)) from error
        raise AssertionError("there is always another number")

    def _present(self, request: ExchangeRequest, attempt: _Attempt, *, again: bool) -> ExchangeRequest:
        """The request to those who are there on the virtual clock; raises RoundFailed where these are too few.

        again: a sum of the same clients is repeated.
        """
        if self._virtual is None or again or attempt.floor is not None:
            return request
        wanted = len(request.nodes)
        least = least_of(wanted, self.settings, self.clients, self._least)
        extra = self._virtual.beyond(wanted) if is_training(request.message_type) else 0
        attempt.enough = wanted if extra else 0
        members = range(1, self.clients + 1)
        return replace(request, nodes=self._virtual.cohort(request.nodes, members, least=least, extra=extra))

    def _stage(self, task: Task, attempt: _Attempt, down: int) -> UpdateStage | None:
        """How the updates of a training exchange are waited for."""
        if self._virtual is None or not task.trains or attempt.floor is not None:
            return None
        return UpdateStage(time=self._virtual, task=task, down=down, enough=attempt.enough, trained=attempt.trained)

    def _new_floor(self, virtual: VirtualTime) -> Floor:
        """The clients at work, of a run in which no round waits for them."""
        return Floor.of(
            virtual,
            self.clients,
            self._least,
            crew=self._crew,
            seed=self.seed,
            take=self._owners.take_work,
            drop=self._lost_work,
        )

    def _publish(self, floor: Floor, request: ExchangeRequest) -> None:
        """The strategy's model is the newest version from here on."""
        if request.model is None:
            raise RunFailed('a training names no model, and asynchrony = "buffered" sums changes of one')
        work = make_work(
            request,
            settings=self.settings,
            run=RUN,
            exchange=self._exchange + 1,
            app_sha256=self._owners.app_sha256,
            run_config=self.run_config,
            model=model_ref(request.model),
        )
        floor.publish(request.model, work)
        floor.up = floor.up or 8 * sum(spec.size for spec in request.model.layout.specs)  # a first exchange's fields

    def _keep_or_spend(self, floor: Floor) -> None:
        """After an attempt without a sum: updates that were named can only be in the very same sum, asked for once."""
        last = self._owners.chain.links[-1] if self._owners.chain.links else None
        if floor.named:
            for client in floor.give_up_named():
                self._lost_work(client, "its update was in a sum that stayed closed, and can be in no other")
        elif last is not None and last.exchange == self._exchange:
            floor.named = tuple(sorted(client for client, _, _ in last.buffered))

    def _lost_work(self, client: int, why: str) -> None:
        self._owners.drop_work([client])
        self._dropped(None, client, "train", why)

    def _check_asked(self, nodes: int, message_type: str) -> None:
        check_asked(nodes, self.settings, self.clients, self._least, message_type=message_type)

    def _try_again(self, request: ExchangeRequest, attempt: _Attempt, error: RoundFailed, again: bool) -> bool:
        """Tell of an attempt without a sum; returns `again`."""
        reason, survivors = self._owners.explain(error), len(attempt.survivors)
        self.emit(attempt_ended(error, reason, self._exchange, request.server_round, survivors, again=again))
        return again

    def _final_reason(self, request: ExchangeRequest, attempt: _Attempt, error: RoundFailed) -> str:
        reason = final_reason(error, self.settings)
        if reason != str(error):
            return f"round {request.server_round} failed: {reason}"
        return f"round {request.server_round} failed {attempt.number} times, last: {self._owners.explain(error)}"

    def _has_room(self, failures: int, n: int) -> bool:
        """Whether a sum over a whole cohort of `n` may hold so many clients that contribute nothing."""
        return failures <= failures_for(self.settings, n, self._least, self.clients, whole=True)

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """One plain exchange; raises EnoughFound to end the run."""
        self._check_enough()
        try:
            with contextlib.chdir(self._home):
                return self._plain_exchanges.ask(request)
        except ProtocolViolation as refusal:
            raise self._refused(request, refusal) from refusal
        finally:
            self._exchange = self._plain_exchanges.count

    def _admit_messages(self, task: Task, contents: Sequence[Path]) -> None:
        """What the owners check before their clients read a plain message; raises ProtocolViolation."""
        self._owners.admit(task, None)
        for content in contents:
            check_message(task, content, self._owners.agreed, self._owners.policy)

    def _task(
        self,
        request: ExchangeRequest,
        encoding: AnyEncoding | None,
        *,
        attempt: int,
        whole: bool,
        floor: Floor | None = None,
        part: Part | None = None,
    ) -> Task:
        return make_task(
            request,
            settings=self.settings,
            run=RUN,
            exchange=self._exchange,
            attempt=attempt,
            whole=whole,
            cohort=request.nodes,
            app_sha256=self._owners.app_sha256,
            run_config=self.run_config,
            model=model_ref(request.model),
            encoding=encoding,
            least_cohort=self._least,
            members=self.clients,
            previous=self._owners.chain.head,
            buffer=floor.book.starts(sorted(request.nodes)) if floor is not None else None,
            cut=part.cut if part else None,
            group=part.group if part else None,
            places=part.places if part else None,
        )

    def _secure(self, request: ExchangeRequest, attempt: _Attempt) -> list[ExchangeReply]:
        """One attempt at an exchange of one sum."""
        started = self.clock()
        found = self._sum(request, attempt)
        self._learn(request, [found])
        self._done(request, [replace(found, seconds=self.clock() - started)], self._exchange)
        kind = request.message_type
        if not is_training(kind) and not is_query(kind) and request.model is not None:
            self._evaluated = (request.server_round, request.model)
            self._judge(found.decoded.metrics)
        return [ExchangeReply.of_cohort(found.decoded)]

    def _sum(self, request: ExchangeRequest, attempt: _Attempt) -> Summed:
        """One attempt at a sum."""
        layout = request.model.layout if request.model and is_training(request.message_type) else None
        size = len(request.nodes)
        encoding = self._plan.encoding(request.message_type, layout, size, self.clients, whole=attempt.whole)
        self._account.admit(release_of(encoding))
        task = self._task(
            request, encoding, attempt=attempt.number, whole=attempt.whole, floor=attempt.floor, part=attempt.part
        )
        admitted = self._owners.admit(task, request.model)
        parameters = self._parameters(task)
        stage = self._stage(task, attempt, request.model.layout.nbytes if request.model else 0)
        # Thousands of clients in one process would each check the same signatures.
        verify = cache(verifies)
        round_ = MemoryRound(
            server=ServerRound(parameters=parameters, roster=self._owners.roster.keys, verify=verify),
            sessions={i: self._session(i, parameters, verify) for i in task.cohort},
            doomed=self._fates.doomed(task.cohort),
            admitted=admitted,
            on_dropout=partial(self._dropped, stage),
            late=None if stage is None else partial(stage.late, up=encoding.words * 8),
        )
        work = partial(attempt.results, self._crew, task, request.model)
        starts = attempt.floor.starts(task) if attempt.floor is not None else None
        with stage or contextlib.nullcontext():
            total = round_.collect(encoding, request.model, work, starts)
            self._account.spend(release_of(encoding))
            attempt.survivors = survivors = round_.unmask(total)
        base = request.model if layout else None
        try:
            decoded = decode(encoding, total, survivors=len(survivors), base=base, out_path=None, sums=task.queries)
        except UpdateTooLarge as error:
            self._plan.learn_overflow(request.message_type, encoding, error.statistics)
            raise
        staleness: dict[int, int] = {}
        if attempt.floor is not None:
            staleness = attempt.floor.staleness(survivors)
            decoded = replace(decoded, metrics={**decoded.metrics, **staleness_metrics(staleness.values())})
            attempt.floor.spend(survivors, counted=True)
            attempt.floor.up = encoding.words * 8
            attempt.floor.summed()
            self._owners.drop_work(survivors)
        elif task.trains:
            self._crew.count(request.server_round, survivors)
        self.told = task.configs if task.trains else self.told
        return Summed(encoding=encoding, decoded=decoded, survivors=survivors, staleness=staleness)

    def _learn(self, request: ExchangeRequest, found: Sequence[Summed]) -> None:
        """What the sums told together is what the next encodings are made from."""
        statistics = joined([one.decoded.statistics for one in found])
        self._plan.learn(request.message_type, found[0].encoding, replace(found[0].decoded, statistics=statistics))

    def _judge(self, metrics: Mapping[str, Any]) -> None:
        """Keep the model that was evaluated last if no other was better."""
        rule = BestRule.parse(self.settings.best_model)
        if rule is None or self._evaluated is None:
            return
        number, model = self._evaluated
        value = rule.value(metrics)
        self._unjudged = rule.absent(metrics) if value is None else ""
        if value is not None and rule.beats(value, self.best.value if self.best is not None else None):
            spent = self._account.epsilon_spent
            self.best = BestModel(state=model, value=value, said=rule.said(value), rounds=number, epsilon=spent)

    def _warn_unjudged(self) -> None:
        """Say once that the evaluation did not have the metric, nor what the strategy made of it."""
        if self._unjudged and not self._warned_of_best:
            self._warned_of_best = True
            self.emit(Warned(line=self._unjudged))

    def _session(self, client: int, parameters: RoundParameters, verify: Verify) -> ClientSession:
        return ClientSession(
            parameters=parameters,
            client_id=client,
            identity=self._identities[client],
            roster=self._owners.roster.keys,
            min_cohort=self._owners.policy.min_cohort,
            min_threshold=self._owners.policy.min_threshold,
            verify=verify,
        )

    @property
    def _least(self) -> int:
        """The least cohort of the owners' policies, as a server's settings have it."""
        return self._owners.policy.min_cohort

    def _simulated_owners(self) -> SimulatedOwners:
        public = {i: key.public_key().public_bytes_raw() for i, key in self._identities.items()}
        members = [Member(id=i, name=client_name(i), public_key=key) for i, key in public.items()]
        agreed = Agreed.to(self.app)
        policy = self.policy
        if policy is None:
            agreed = Agreed(run_config=self.run_config, settings=self.settings)
            policy = replace(Policy.default(self.clients), allow_plain=True)
        return SimulatedOwners(
            roster=Roster.sign(FEDERATION, members, self._key(0)),
            policy=policy,
            app_sha256=AppBundle.from_folder(self.app.folder).sha256,
            agreed=agreed,
        )

    def _key(self, member: int) -> Ed25519PrivateKey:
        """The key of a client, or with 0 that of the authority: the same again in a run that goes on."""
        if self._kept_in is None:
            return Ed25519PrivateKey.generate()
        secret = self._kept_in.secret
        return Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, f"simulated key {member}".encode(), "sha256"))

    def _parameters(self, task: Task) -> RoundParameters:
        model_hash = bytes.fromhex(task.model.sha256) if task.model else None
        roster = self._owners.roster
        return round_parameters(task, federation=FEDERATION, roster_hash=roster.hash(), model_hash=model_hash)

    def _warn_of_choices(self) -> None:
        """Say what the owners of a federation would refuse that whoever simulates may decide alone."""
        stock = Policy.default(self.clients)
        for refusal in refused_choices(self.run_config, self.settings, Agreed.to(self.app), stock):
            self.emit(Warned(line=f"a federation with stock policies refuses this run: {refusal}"))

    def _refused(self, request: ExchangeRequest | PlainRequest, refusal: ProtocolViolation) -> RunFailed:
        """What ends a run that the owners do not take part in."""
        reason = refused_by_all([refusal])
        number = request.server_round
        self.emit(ExchangeFailed(exchange=self._exchange, server_round=number, reason=reason, retry=False))
        return RunFailed(reason)

    def _dropped(self, stage: UpdateStage | None, client: int, step: str, reason: str) -> None:
        name = client_name(client)
        if stage is not None and reason == SIMULATED:
            stage.vanished.add(step)
        self.emit(ClientDropped(exchange=self._exchange, client=name, stage=step, reason=reason))

    def _done(self, request: ExchangeRequest, found: Sequence[Summed], exchange: int) -> None:
        """Tell of an exchange that was completed, in one sum or in those of groups."""
        decoded, survivors = [one.decoded for one in found], sorted(i for one in found for i in one.survivors)
        names = [client_name(i) for i in survivors]
        down = request.model.layout.nbytes if request.model else 0
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
                virtual_seconds=None if self._virtual is None else self._virtual.lap(),
                bytes_up={client_name(i): one.encoding.words * 8 for one in found for i in one.survivors},
                bytes_down=dict.fromkeys(names, down),
                epsilon_spent=self._account.epsilon_spent,
                staleness={client_name(i): count for one in found for i, count in one.staleness.items()},
                groups=len(found),
            )
        )


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One attempt at an exchange. whole: all have to survive. survivors: whose updates were in its sum.

    trained: in this attempt or before it, on the virtual clock. enough: with how many updates no more are waited for.
    floor: where updates were made before. part: the group that it is for, if there is one.
    """

    number: int
    whole: bool
    kept: KeptResults
    trained: set[int]
    enough: int = 0
    floor: Floor | None = None
    part: Part | None = None
    survivors: Sequence[int] = ()

    def results(
        self, crew: Crew, task: Task, model: ModelState | None, clients: Sequence[int]
    ) -> Iterator[tuple[int, LocalResult]]:
        """What clients' apps give, run once for all attempts; in any order."""
        if self.floor is not None:
            return self.floor.results(clients)
        return self.kept.results(clients, lambda others: crew.run(task, model, others))


def client_name(client: int) -> str:
    """The name of a simulated client, as provisioning gives it."""
    return f"client-{client}"
