"""A whole simulated run: answers the requests of the app's ServerApp by exchanges in memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import AppError, ConfigurationError, EnoughFound, ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission.app_agreement import AppAgreement, check_message
from fedcore.federation.admission.simulated import SimulatedOwners
from fedcore.federation.admission.tasks import refused_choices
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.apps.result_cache import AppResults
from fedcore.flower.grid.grid import ExchangeBackend
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.flower.grid.robust import Groups
from fedcore.flower.grid.sampling import waited_for
from fedcore.flower.grid.training_means import MeanRecorder
from fedcore.flower.results import Results
from fedcore.flower.serverside import ServerAppOutcome, run_server_app
from fedcore.run.engine.state import RunState
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.run.quorum import noise_shares
from fedcore.run.requirements import (
    check_cohort_request,
    check_needs,
    least_clients,
    waiting_for,
    why_all_evaluate,
)
from fedcore.run.settings import JobSettings, planned_rounds
from fedcore.simulation.buffered import usual_devices
from fedcore.simulation.checkpoint.resume import EventRecorder, Resumable
from fedcore.simulation.checkpoint.snapshot import RunCheckpoint
from fedcore.simulation.checkpoint.state_folder import StateFolder, run_identity
from fedcore.simulation.cohort import CohortAggregator
from fedcore.simulation.devices.devices import Devices
from fedcore.simulation.devices.virtual_scheduler import VirtualScheduler
from fedcore.simulation.downloads import SimulatedDownloads
from fedcore.simulation.dropouts import DropoutModel, RandomDropout
from fedcore.simulation.grouped import sums_of_groups
from fedcore.simulation.models import BestModel, BestModelKeeper
from fedcore.simulation.owners import RUN, client_name, key_of, owners_of
from fedcore.simulation.plain import PlainSimulation
from fedcore.simulation.secure import SecureAggregator, refused_run
from fedcore.simulation.sessions.processes import SessionProcesses
from fedcore.simulation.workers.executor import ClientExecutor, InlineExecutor, RecordingExecutor
from fedcore.simulation.working_folders import WorkingFolders
from fedcore.state import ModelState
from fedcore.wire.base import Scalar
from fedcore.wire.events import EventSink, FiguresFound, PrivacyTerms, RunEnded, RunStarted, Warned, ignore
from fedcore.wire.operator import RunStatus
from fedcore.wire.tasks import Task, is_query, is_training


@dataclass(slots=True, kw_only=True)
class Simulation:
    """A simulated run: `run` runs the app's ServerApp; `open` gives what answers requests in its place.

    drop
        Probability that a client drops out of an exchange, at a step drawn at random; `seed` repeats it.
    dropouts
        Decides who drops out in place of that.
    devices
        How fast the clients are and when they are available, on the virtual clock; None for no such clock, or for
        `usual_devices` if no round waits for its clients (asynchrony = "buffered").
    executor
        Runs the clients' apps; None for this process, where `clients_at_once` of them train at once (0: as many as pay,
        1: one by one) if the app allows it.
    policy
        What every client's owner insists on. None: a stock policy, but who runs all of it may set its config and
        settings and read single updates; a warning says what the owners of a federation would refuse of that.
    folder
        Where the ServerApp works, as on a server in one of its own; None for the current one. Clients train in the
        latter.
    state
        A folder in which the run keeps all that it takes to go on, and goes on if it has the run already (`resume`);
        None for a run that lives as long as its process.
    initial
        What the ServerApp's strategy starts from in place of its own model.
    emit
        Takes the events.
    enough
        Whether what the ServerApp found ends the run, with the model that it has then.
    on_loaded
        Called when the ServerApp is imported.
    means
        Takes the means of the trainings; None if nobody compares them.
    results
        What the ServerApp found, as `results_of` has it, also of a run that failed.
    """

    app: FlowerApp
    clients: int
    run_config: Mapping[str, Scalar]
    settings: JobSettings
    drop: float = 0.0
    seed: int = 0
    dropouts: DropoutModel | None = None
    devices: Devices | None = None
    executor: ClientExecutor | None = None
    clients_at_once: int = 0
    policy: Policy | None = None
    folder: Path | None = None
    state: Path | None = None
    initial: ModelState | None = None
    emit: EventSink = ignore
    enough: Callable[[FiguresFound], bool] | None = None
    clock: Callable[[], float] = time.monotonic
    on_loaded: Callable[[], None] | None = None
    means: MeanRecorder | None = None
    results: Results = field(default_factory=dict, init=False)
    _emit: EventSink = field(init=False)
    _executor: ClientExecutor = field(init=False)
    _dropouts: DropoutModel = field(init=False)
    _owners: SimulatedOwners = field(init=False)
    _state: RunState = field(init=False)
    _folders: WorkingFolders = field(init=False)
    _virtual: VirtualScheduler | None = field(default=None, init=False)
    _aggregator: SecureAggregator = field(init=False)
    _cohorts: CohortAggregator = field(init=False)
    _plain_exchanges: PlainSimulation = field(init=False)
    _models: BestModelKeeper = field(init=False)
    _downloads: SimulatedDownloads = field(init=False)
    _enough: str = field(default="", init=False)
    _all_evaluate: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.clients < 1 or not 0 <= self.drop < 1:
            raise ConfigurationError("a simulation needs at least 1 client and a drop probability in [0, 1)")
        if self.settings.aggregation == "secure" and self.clients < 2:
            raise ConfigurationError(
                "secure aggregation needs at least 2 clients: the sum of one is its own update", check="too-few-clients"
            )

    @contextlib.contextmanager
    def open(self) -> Iterator[ExchangeBackend]:
        """Make the parts of the run; the block has what answers requests, and the state folder to itself.

        Raises ConfigurationError for what cannot work, before anybody trains.
        """
        self._folders = WorkingFolders(server=self.folder or Path.cwd(), clients=Path.cwd())
        self._dropouts = self.dropouts or RandomDropout(self.drop, self.seed)
        with contextlib.ExitStack() as stack:
            executor = self.executor or stack.enter_context(
                InlineExecutor(app=self.app, clients=self.clients, at_once=self.clients_at_once)
            )
            executor.on_warning(lambda line: self._emit(Warned(line=line)))
            if self.state is None:
                self._emit, self._executor = self.emit, executor
                self._make_parts(None)
                backend: ExchangeBackend = self
            else:
                folder = stack.enter_context(StateFolder.open(self.state, self._identity()))
                backend = self._resumable(folder, executor)
            if self._cohorts.pool is not None:
                stack.callback(self._cohorts.pool.close)
            if self.settings.aggregation == "secure" and executor.processes > 1:
                self._aggregator.processes = stack.enter_context(SessionProcesses(executor.processes))
            yield backend

    def _make_parts(self, secret: bytes | None) -> None:
        """secret: of the state folder, from which the clients' keys follow."""
        identities = {i: key_of(i, secret) for i in range(1, self.clients + 1)}
        self._owners = owners_of(
            self.app,
            identities,
            key_of(0, secret),
            self.policy,
            run_config=self.run_config,
            settings=self.settings,
            from_app=self.initial is None,
        )
        if self.clients > 1:  # one alone is no federation, and every client of one is centralized training
            check_needs(self.settings, self.clients, self._least)
        self._state = RunState(self.settings, self._least)
        self._virtual = self._virtual_time()
        self._models = BestModelKeeper(state=self._state, emit=self._emit)
        self._downloads = SimulatedDownloads(bits=self.settings.download_bits)
        self._aggregator = self._secure_aggregator(identities)
        self._cohorts = CohortAggregator(aggregator=self._aggregator, seed=self.seed)
        self._plain_exchanges = self._plain()

    def _identity(self) -> dict[str, str]:
        """What tells this run from others, by the names of the options that decide it."""
        devices = self.devices
        return run_identity(
            self.settings,
            {
                "app": f"{self.app.name} {AppBundle.from_folder(self.app.folder).sha256}",
                "clients": self.clients,
                "clients-at-once": self.clients_at_once,
                "run-config": sorted(self.run_config.items()),
                "seed": self.seed,
                "drop": self.drop,
                "devices": None if devices is None else (devices.profiles, devices.network, devices.seed),
                "policy": self.policy,
                "initial-model": "" if self.initial is None else self.initial.sha256(),
            },
        )

    def _resumable(self, folder: StateFolder, executor: ClientExecutor) -> Resumable:
        """Make the parts, and this simulation with its checkpoints."""
        recording, dropouts = RecordingExecutor(executor), self._dropouts
        if not isinstance(dropouts, RandomDropout):
            raise ConfigurationError(
                "a simulation with a custom dropout model cannot be checkpointed", check="custom-dropouts"
            )
        self._executor, self._emit = recording, (events := EventRecorder(self.emit))
        self._make_parts(folder.secret)
        checkpoint = RunCheckpoint(
            state=self._state,
            executor=recording,
            owners=self._owners,
            models=self._models,
            plain=self._plain_exchanges,
            dropouts=dropouts,
            virtual=self._virtual,
        )
        self._aggregator.on_end = checkpoint.note_end
        return Resumable(
            backend=self,
            downloads=self._downloads,
            folder=folder,
            checkpoint=checkpoint,
            events=events,
            name=f"fedcore simulation {self.seed}",
        )

    def _virtual_time(self) -> VirtualScheduler | None:
        devices = self.devices or (usual_devices(self.seed) if self.settings.buffered else None)
        if devices is None:
            return None
        if self.settings.groups > 1:
            raise ConfigurationError(
                "groups work at the same time, which the virtual clock of devices does not know yet; leave the "
                "devices out, or set groups = 1"
            )
        return VirtualScheduler(devices=devices, settings=self.settings, run_config=self.run_config)

    def _secure_aggregator(self, identities: Mapping[int, Ed25519PrivateKey]) -> SecureAggregator:
        return SecureAggregator(
            clients=self.clients,
            run_config=self.run_config,
            settings=self.settings,
            executor=self._executor,
            dropouts=self._dropouts,
            identities=identities,
            owners=self._owners,
            state=self._state,
            virtual=self._virtual,
            downloads=self._downloads,
            emit=self._emit,
            clock=self.clock,
        )

    def _plain(self) -> PlainSimulation:
        return PlainSimulation(
            run=RUN,
            executor=self._executor,
            clients=range(1, self.clients + 1),
            settings=self.settings,
            run_config=self.run_config,
            app_sha256=self._owners.app_sha256,
            admit=self._admit_messages,
            dropouts=self._dropouts,
            virtual=self._virtual,
            emit=self._emit,
            name=client_name,
            clock=self.clock,
        )

    def run(self) -> ServerAppOutcome:
        """Run the app's ServerApp over simulated exchanges to its end."""
        with self.open() as backend:
            self._emit_start()
            if isinstance(backend, Resumable):
                backend.begin()
            with self._folders.of_server():
                outcome = run_server_app(
                    self.app,
                    backend=backend,
                    run=RUN,
                    run_config=dict(self.run_config),
                    aggregation=self.settings.aggregation,
                    most_nodes=lambda: self.clients,
                    on_results=self.results.update,
                    initial=self.initial,
                    on_refusal=self.refuse,
                    noised=self.settings.private,
                    compressed=self.settings.compresses,
                    buffered=self.settings.buffered,
                    groups=Groups.of(self.settings),
                    on_loaded=self.on_loaded,
                    means=self.means,
                    noise_shares=lambda n: noise_shares(self.settings, n, self.clients),
                )
            self._models.warn_unjudged()
            self._emit(RunEnded(status=RunStatus.FINISHED, reason=outcome.stopped))
        return outcome

    def _emit_start(self) -> None:
        self._emit(
            RunStarted(
                app=self.app.name,
                aggregation=self.settings.aggregation,
                rounds=planned_rounds(self.run_config),
                privacy=PrivacyTerms.of(self._state.encodings.privacy),
            )
        )
        if self.settings.over_selection and self._virtual is None:
            self._emit(Warned(line="over-selection changes nothing without devices: no client is slower than others"))
        if self.policy is None:
            self._warn_of_choices()

    def refuse(self, error: AppError) -> None:
        """Code of the app wants more than the mean of a secure sum: the run ends."""
        raise error

    def nodes(self) -> list[int]:
        members = list(range(1, self.clients + 1))
        if self._virtual is None or self._cohorts.pool is not None:  # who comes later is given work then
            return members
        least = least_clients(self.settings, self.clients, self._least)
        return self._virtual.nodes(members, least=least, enough=waited_for())

    def waits(self, nodes: int, setting: str, present: int) -> None:
        """Say that the ServerApp asks for nodes and goes on asking."""
        self._emit(Warned(line=waiting_for(nodes, setting, present, self.clients, ())))

    def report_figures(self, figures: FiguresFound) -> None:
        """Tell of what the strategy made of replies; a model may be judged by it."""
        self._emit(figures)
        if self.enough is not None and self.enough(figures):
            self._enough = f"what was found in round {figures.server_round} was enough"
        self._models.take_figures(figures)

    def _check_enough(self) -> None:
        if self._enough:
            raise EnoughFound(self._enough)

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """One exchange, tried again with new dropouts after a failure; raises EnoughFound to end the run."""
        self._check_enough()
        self._models.warn_unjudged()
        if not self._state.admits(request.message_type, request.ahead, self._check_request):
            return []
        request = self._enlarged(request)
        self._check_request(len(request.nodes), request.message_type)
        kind, request = request.message_type, self._downloads.of(request)
        with AppResults() as results, self._folders.of_clients():
            if self.settings.groups > 1 and is_training(kind):
                return [ExchangeReply.of_cohort(one) for one in sums_of_groups(self._aggregator, request, results)]
            decoded, best = self._cohorts.exchange(request, results)
        if not is_training(kind) and not is_query(kind) and request.model is not None:
            self._models.evaluate(request.server_round, request.model, decoded.metrics, best=best)
        return [ExchangeReply.of_cohort(decoded)]

    def _enlarged(self, request: ExchangeRequest) -> ExchangeRequest:
        """The request; to all clients if it is an evaluation of too few for a sum, which is said once."""
        line = why_all_evaluate(
            len(request.nodes), self.settings, self.clients, self._least, message_type=request.message_type
        )
        if not line:
            return request
        if line != self._all_evaluate:
            self._all_evaluate = line
            self._emit(Warned(line=line))
        return replace(request, nodes=tuple(self.nodes()))

    def _check_request(self, nodes: int, message_type: str) -> None:
        check_cohort_request(
            nodes, self.settings, self.clients, self._least, message_type=message_type, own=self.policy is None
        )

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """One plain exchange; raises EnoughFound to end the run."""
        self._check_enough()
        try:
            with self._folders.of_clients():
                return self._plain_exchanges.ask(request)
        except ProtocolViolation as refusal:
            count, number = self._plain_exchanges.count, request.server_round
            raise refused_run(refusal, self._emit, exchange=count, server_round=number) from refusal

    def _admit_messages(self, task: Task, contents: Sequence[Path]) -> None:
        """What the owners check before their clients read a plain message; raises ProtocolViolation."""
        self._owners.admit(task, None)
        for content in contents:
            check_message(task, content, self._owners.agreed, self._owners.policy)

    @property
    def _least(self) -> int:
        """The least cohort of the owners' policies, as a server's settings have it."""
        return self._owners.policy.min_cohort

    @property
    def owners(self) -> SimulatedOwners:
        """What the clients' owners insist on, and what they have seen."""
        return self._owners

    @property
    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        """The configurations that went with the last secure training."""
        return self._state.configs

    @property
    def best(self) -> BestModel | None:
        """The best model so far by `best-model`."""
        return self._models.best

    def _warn_of_choices(self) -> None:
        """Say what the owners of a federation would refuse and a simulation may decide alone."""
        stock = Policy.default(self.clients)
        for refusal in refused_choices(
            self.run_config, self.settings, AppAgreement.of(self.app), stock, members=self.clients
        ):
            self._emit(Warned(line=f"a federation with stock policies refuses this run: {refusal}"))
