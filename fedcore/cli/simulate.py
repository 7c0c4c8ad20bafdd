"""The command `fedcore simulate`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.cli.main import (
    AppFolder,
    AsJson,
    DataFolder,
    InitialModel,
    RunConfig,
    Settings,
    Tracks,
    print_json,
)
from fedcore.cli.simulation_options import Outputs, SimulationOptions
from fedcore.errors import BudgetSpent
from fedcore.system.standard_output import user_output_to_stderr

if TYPE_CHECKING:
    from fedcore.comparison.results import CurvePoint, SumCheck
    from fedcore.federation import Policy
    from fedcore.flower.serverside import ServerAppOutcome
    from fedcore.monitoring.progress import ProgressView
    from fedcore.monitoring.run_record import RunRecord
    from fedcore.monitoring.trackers import Tracking
    from fedcore.simulation import Simulation
    from fedcore.simulation.workers.executors import Engine as EngineName
    from fedcore.state import ModelState
    from fedcore.wire.events import EventSink, RunEvent

Clients = Annotated[
    int | None,
    typer.Option(min=1, help="Number of simulated clients.  \\[default: the app's simulation-clients, or 10]"),
]
PerRound = Annotated[
    int | None,
    typer.Option(min=1, help="Clients per round, set through the app's fraction-train.  \\[default: the app's own]"),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="process|ray|inline",
        help="Where clients train: in a pool of processes, in Ray tasks, or one after the other in this process.",
    ),
]
NumberOfWorkers = Annotated[int, typer.Option(min=0, help="Processes in the pool; 0 for one per core.")]
Aggregation = Annotated[
    str, typer.Option(metavar="secure|plain", help="Short for --set aggregation=...  \\[default: the app's own]")
]
Drop = Annotated[float, typer.Option(min=0.0, max=0.99, help="Probability that a client drops out of a round.")]
Seed = Annotated[int, typer.Option(help="Seed of the simulated dropouts and devices.")]
Seeds = Annotated[
    str,
    typer.Option(
        help="One run per seed: a number of seeds, counted from the app's own, or a list: 5, or 42,43. Each run has "
        "its own folder next to --out and --best, and in --state; --report has one report of all."
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2",
        help="One run per value of a key of the run config or of \\[tool.fedcore]; repeatable.",
    ),
]
DeviceWords = Annotated[
    str,
    typer.Option(
        "--devices",
        metavar="FILE.csv|WORDS",
        help="Speed and availability of clients, on a virtual clock: a trace, or a distribution such as "
        "slower=0.3:10 (see Example).",
    ),
]
NetworkWords = Annotated[
    str,
    typer.Option(
        "--network",
        help="Network and speed of a reference device, on the virtual clock: lan, wan, or figures such as "
        "latency=50ms (see Example).",
    ),
]
AtOnce = Annotated[
    int,
    typer.Option(
        min=0,
        help="How many clients train together in one batched step, if the app allows it: 1 for one by one, 0 for as "
        "many as pay off.",
    ),
]
OwnersPolicy = Annotated[
    str,
    typer.Option(
        metavar="FILE|stock|own",
        help="Client policy to enforce: a policy.toml, stock (the policy of default kits) or own (all clients are "
        "yours). By default stock, but with your run config, settings and plain aggregation allowed.",
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Save the final model here, as safetensors; results and files go next to it.")
]
Best = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Save the best model here, chosen by the setting best-model.")
]
ReportFolder = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FOLDER", help="Write the report of the run here: HTML, Markdown, JSON and figures."
    ),
]
TargetOption = Annotated[
    str,
    typer.Option(
        metavar="NAME:VALUE",
        help="Report when the model first reaches this value: eval_acc:0.9, eval_loss:0.3, or rmse:4:min.",
    ),
]
NoPlainCheck = Annotated[
    bool,
    typer.Option(
        "--no-plain-check",
        help="With --report: do not train the first round and the last again, to check that secure sums are the plain "
        "means.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Checkpoint folder; run the same command again to resume.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


def simulate(
    app: AppFolder,
    clients: Clients = None,
    per_round: PerRound = None,
    engine: Engine = "process",
    workers: NumberOfWorkers = 0,
    aggregation: Aggregation = "",
    drop: Drop = 0.0,
    seed: Seed = 0,
    seeds: Seeds = "",
    vary: Vary = None,
    devices: DeviceWords = "",
    network: NetworkWords = "none",
    clients_at_once: AtOnce = 0,
    run_config: RunConfig = None,
    set_: Settings = None,
    policy: OwnersPolicy = "",
    data_dir: DataFolder = None,
    out: Out = None,
    best: Best = None,
    force: Force = False,
    state: State = None,
    report: ReportFolder = None,
    no_plain_check: NoPlainCheck = False,
    target: TargetOption = "",
    initial_model: InitialModel = None,
    track: Tracks = None,
    as_json: AsJson = False,
) -> None:
    """Run an app in memory, with the same state machines as the real server and clients.

    Example: fedcore simulate examples/digits --clients 100 --per-round 10 --run-config partition=iid

    Example: fedcore simulate examples/digits --network bandwidth=100Mbit,latency=50ms,example=1ms
    --devices time=lognormal:0.5,slower=0.3:10,there=0.8:3600
    """
    from fedcore.api.arguments import policy_of
    from fedcore.simulation.workers.executors import checked_engine
    from fedcore.state import open_initial

    if data_dir is not None:
        os.environ["FEDCORE_DATA"] = str(data_dir.absolute())
    if aggregation:
        set_ = [*(set_ or []), f'aggregation="{aggregation}"']
    options = SimulationOptions.of(app, clients, run_config, set_, per_round, target)
    with user_output_to_stderr():
        options.check_target()
    outputs = Outputs(out=out, best=best, report=report, force=force)
    simulator = _Simulator(
        engine=checked_engine(engine),
        workers=workers,
        clients_at_once=clients_at_once,
        drop=drop,
        devices=devices,
        network=network,
        policy=policy_of(policy or None, options.clients),
        initial=None if initial_model is None else open_initial(initial_model),
        track=track,
        plain_check=report is not None and not no_plain_check,
    )
    with _interruptible(state):
        if seeds or vary:
            from fedcore.cli.sweep import run_sweep, sweep_points

            points = sweep_points(seeds, vary or [], seed, options.run_config, options.settings.to_mapping())
            over_budget = run_sweep(points, options, outputs, state, simulator, as_json=as_json)
        else:
            outputs.check(options.settings)
            record, summary = simulator(options, outputs, seed, state)
            print_json(summary) if as_json else _print_metrics(record, summary, options.settings.best_model)
            over_budget = bool(record.reason)
    if over_budget:  # finished, but by its privacy budget
        raise typer.Exit(BudgetSpent.exit_code)


@contextlib.contextmanager
def _interruptible(state: Path | None) -> Iterator[None]:
    """Let SIGTERM, which schedulers send, do what Ctrl-C does: workers end, temporary files go. Say how to resume."""
    main_thread = threading.current_thread() is threading.main_thread()  # no other thread may set a signal handler
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main_thread else None
    try:
        yield
    except KeyboardInterrupt:
        if state is not None:
            typer.echo(f"interrupted; run the same command again to resume from {state}", err=True)
        raise
    finally:
        if main_thread:
            signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simulator:
    """Runs simulations that differ in options, seed and folders alone; the rest is the same in each."""

    engine: EngineName
    workers: int
    clients_at_once: int
    drop: float
    devices: str
    network: str
    policy: Policy | None
    initial: ModelState | None
    track: list[str] | None
    plain_check: bool

    def __call__(
        self, options: SimulationOptions, outputs: Outputs, seed: int, state: Path | None
    ) -> tuple[RunRecord, dict[str, Any]]:
        """Simulate one run with progress on the terminal, and write its outputs; returns its record and its summary."""
        from fedcore.flower.grid.training_means import MeanRecorder
        from fedcore.monitoring.run_record import RunRecord
        from fedcore.simulation import Simulation
        from fedcore.simulation.devices.choice import parse_devices
        from fedcore.simulation.devices.network import Network
        from fedcore.simulation.workers.executors import make_executor
        from fedcore.simulation.workers.progress import ProgressExecutor
        from fedcore.system.files import private_folder
        from fedcore.system.memory import set_aside

        devices = parse_devices(self.devices, Network.parse(self.network), clients=options.clients, seed=seed)
        record = RunRecord()
        with (
            make_executor(self.engine, options.app, options.clients, self.workers, self.clients_at_once) as executor,
            private_folder() as folder,
            user_output_to_stderr(),
            _observers(options, record, self.track) as (view, tracking, emit),
        ):
            simulation = Simulation(
                app=options.app,
                clients=options.clients,
                run_config=options.run_config,
                settings=options.settings,
                folder=folder,
                emit=emit,
                executor=ProgressExecutor(executor, view.works),
                on_loaded=set_aside,  # Flower collects garbage for every reply that Bulyan and QFedAvg read
                drop=self.drop,
                seed=seed,
                devices=devices,
                clients_at_once=self.clients_at_once,
                state=state,
                policy=self.policy,
                initial=self.initial,
                means=MeanRecorder(secure=True) if self._checks_sums(options) else None,
            )
            outcome = _run(simulation, outputs, folder)
            paths = outputs.results(simulation, folder)
            for kind, file in outputs.models(simulation, outcome.state, record):
                tracking.keep(file, kind)
            curve = outputs.write_report(
                options, simulation, outcome.state, record, self._sum_checks(options, simulation, record)
            )
        return record, _summary(options, outputs, simulation, record, curve) | paths

    def _checks_sums(self, options: SimulationOptions) -> bool:
        settings = options.settings
        return self.plain_check and settings.aggregation == "secure" and not (settings.private or settings.buffered)

    def _sum_checks(
        self, options: SimulationOptions, simulation: Simulation, record: RunRecord
    ) -> tuple[SumCheck, ...]:
        """Whether the first secure sum and the last are plain means, by one more round for each; () if not asked."""
        from fedcore.comparison.simulated import simulated_checks
        from fedcore.simulation.workers.executors import make_executor

        if simulation.means is None:
            return ()
        return simulated_checks(
            simulation.means,
            record,
            app=options.app,
            run_config=options.run_config,
            settings=options.settings,
            seed=simulation.seed,
            executor=lambda: make_executor(
                self.engine, options.app, options.clients, self.workers, self.clients_at_once
            ),
        )


@contextlib.contextmanager
def _observers(
    options: SimulationOptions, record: RunRecord, track: list[str] | None
) -> Iterator[tuple[ProgressView, Tracking, EventSink]]:
    """The progress view, the trackers, and a sink that gives both, and the record, the events of a run."""
    from rich.console import Console

    from fedcore.comparison.target import UnreportedTarget
    from fedcore.flower.output import quiet_flower
    from fedcore.monitoring.progress import ProgressView
    from fedcore.monitoring.trackers import Tracking, parse_tracks
    from fedcore.wire.events import Warned

    started, tracks = time.monotonic(), parse_tracks(track)
    # The progress view says it already; Flower's own lines would bury it.
    quiet_flower()
    with (
        ProgressView(Console(stderr=True), "simulated", clients=options.clients) as view,
        Tracking.begin(tracks, _tracked_run(options), lambda line: view.show(Warned(line=line))) as tracking,
    ):
        unreported = None if options.target is None else UnreportedTarget(options.target)

        def emit(event: RunEvent) -> None:
            record.add(event, time.monotonic() - started)
            view.show(event)
            tracking(event)
            if unreported is not None and (warning := unreported.take(event)):
                emit(Warned(line=warning))

        yield view, tracking, emit


def _run(simulation: Simulation, outputs: Outputs, folder: Path) -> ServerAppOutcome:
    """Run a simulation to its end; if it fails, print where its results and files are."""
    from fedcore.monitoring.output_paths import saved_lines

    try:
        return simulation.run()
    except BaseException:
        for line in saved_lines(outputs.results(simulation, folder)):
            typer.echo(line, err=True)
        raise


def _summary(
    options: SimulationOptions,
    outputs: Outputs,
    simulation: Simulation,
    record: RunRecord,
    curve: Sequence[CurvePoint] | None,
) -> dict[str, Any]:
    """The summary of a run as plain JSON.

    Args:
        curve: that of its report, None without one.
    """
    summary = {"app": options.app.name, "clients": options.clients, **record.summary(), "results": simulation.results}
    if options.target is not None:
        from fedcore.comparison.simulated import model_curve

        summary["target"] = options.target.progress(curve or model_curve(record, simulation.results))
    summary["model"] = str(outputs.out) if outputs.out else None
    summary["best_model"] = str(outputs.best) if outputs.best and simulation.best is not None else None
    if simulation.best is not None:
        summary["best"] = {"round": simulation.best.rounds, "value": simulation.best.description}
    summary["report"] = str(outputs.report) if outputs.report else None
    return summary


def _tracked_run(options: SimulationOptions) -> Any:
    from fedcore.flower.app import AppBundle
    from fedcore.monitoring.trackers import TrackedRun

    return TrackedRun(
        name=f"{options.app.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        app=options.app.name,
        app_sha256=AppBundle.from_folder(options.app.folder).sha256,
        run_config=options.run_config,
        settings=options.settings.to_mapping(),
    )


def _print_metrics(record: RunRecord, summary: Mapping[str, Any], best_model: str) -> None:
    from rich.console import Console

    from fedcore.monitoring.output_paths import saved_lines, server_line
    from fedcore.monitoring.progress import ended_line, epsilon_line
    from fedcore.system.terminal import escape

    ended = ended_line(summary["app"], summary["rounds"], summary["metrics"], best_model=best_model)
    lines = [ended, server_line(summary["results"])]
    if (best := summary.get("best")) is not None:
        advice = "" if summary["best_model"] else "; --best FILE keeps that model"
        lines.append(f"best in round {best['round']}: {best['value']}{advice}")
    lines += saved_lines(summary)
    if "target" in summary:
        from fedcore.comparison.target import line_of

        lines.append(line_of(summary["target"], summary["metrics"]))
    for line in filter(None, lines):
        Console().print(escape(line), highlight=False, soft_wrap=True)
    if summary["report"]:
        Console().print(
            f"report: {summary['report']}/report.html, report.md, report.json", highlight=False, soft_wrap=True
        )
    if record.privacy is not None:
        line = epsilon_line(record.privacy, record.epsilon_spent() or 0.0)
        Console().print(line, highlight=False, soft_wrap=True)
