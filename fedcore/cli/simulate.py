"""The command `fedcore simulate`."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

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
    user_output_to_stderr,
)
from fedcore.cli.simulation_options import Outputs, SimulationOptions
from fedcore.errors import BudgetSpent

if TYPE_CHECKING:
    from fedcore.cli.sweep import SweepPoint
    from fedcore.comparison.results import CurvePoint
    from fedcore.flower.serverside import ServerAppOutcome
    from fedcore.monitoring.progress import ProgressView
    from fedcore.monitoring.run_record import RunRecord
    from fedcore.monitoring.trackers import Tracking
    from fedcore.simulation import Simulation
    from fedcore.simulation.workers.executor import ClientExecutor
    from fedcore.wire.events import EventSink, RunEvent

Clients = Annotated[
    int | None,
    typer.Option(min=1, help="Number of simulated clients.  \\[default: the app's simulation-clients, or 10]"),
]
PerRound = Annotated[
    int | None,
    typer.Option(min=1, help="Clients that a round asks, by the app's fraction-train.  \\[default: as the app has it]"),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="process|ray|inline",
        help="Where clients train: in a pool of processes, in tasks of Ray, or in this process one after the other.",
    ),
]
NumberOfWorkers = Annotated[int, typer.Option(min=0, help="Processes of the pool; 0 for one a core.")]
Aggregation = Annotated[
    str, typer.Option(metavar="secure|plain", help="Short for --set aggregation=...  \\[default: as the app has it]")
]
Drop = Annotated[float, typer.Option(min=0.0, max=0.99, help="Chance that a client drops out of a round.")]
Seed = Annotated[int, typer.Option(help="Seed of the simulated dropouts and devices.")]
Seeds = Annotated[
    str,
    typer.Option(
        help="Several runs, one for each seed: how many from the app's own on, or a list: 5, or 42,43. Each has a "
        "folder of its own beside --out and --best, and in --report and --state."
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2",
        help="Several runs, one for each value of a key of the run config or of \\[tool.fedcore]; repeatable.",
    ),
]
DeviceWords = Annotated[
    str,
    typer.Option(
        "--devices",
        metavar="FILE.csv|WORDS",
        help="How fast clients are and when they are there, on a virtual clock: a trace, or as in "
        "time=lognormal:0.5,slower=0.3:10,there=0.8:3600.",
    ),
]
NetworkWords = Annotated[
    str,
    typer.Option(
        "--network",
        help="Links and pace of a reference device, on the virtual clock: lan, wan, or "
        "bandwidth=100Mbit,latency=50ms,example=1ms.",
    ),
]
AtOnce = Annotated[
    int,
    typer.Option(
        min=0,
        help="How many clients train at once, as one batched step, where the app allows it: 1 for one by one, 0 for as "
        "many as pay.",
    ),
]
OwnersPolicy = Annotated[
    str,
    typer.Option(
        metavar="FILE|stock|own",
        help="What the clients' owners insist on: a policy.toml, that of stock kits, or that of clients which are "
        "all yours. By default that of stock kits, but run config, settings and plain aggregation are yours.",
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Save the final model here, as safetensors; results and files beside it.")
]
Best = Annotated[Path | None, typer.Option(metavar="FILE", help="Save the best model here, by the setting best-model.")]
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
        help="Say when a model first was as good as this: eval_acc:0.9, eval_loss:0.3, or rmse:4:min.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Keep here all that it takes to go on; the same command again goes on where it was ended.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
# Carries out one run.
Once: TypeAlias = "Callable[[SimulationOptions, Outputs, int, Path | None], tuple[RunRecord, dict[str, Any]]]"


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
    target: TargetOption = "",
    initial_model: InitialModel = None,
    track: Tracks = None,
    as_json: AsJson = False,
) -> None:
    """Run an app in memory, with the same state machines as the real server and clients.

    Example: fedcore simulate examples/digits --clients 100 --per-round 10 --run-config partition=iid
    """
    from fedcore.api.arguments import policy_of
    from fedcore.simulation.devices.choice import parse_devices
    from fedcore.simulation.devices.network import Network
    from fedcore.simulation.workers.executors import checked_engine, make_executor
    from fedcore.state import open_initial

    if data_dir is not None:
        os.environ["FEDCORE_DATA"] = str(data_dir.absolute())
    if aggregation:
        set_ = [*(set_ or []), f'aggregation="{aggregation}"']
    wanted = SimulationOptions.of(app, clients, run_config, set_, per_round, target)
    with user_output_to_stderr():
        wanted.check_target()
    outputs = Outputs(out=out, best=best, report=report, force=force)
    trains = checked_engine(engine)
    initial = None if initial_model is None else open_initial(initial_model)

    def once(
        wanted: SimulationOptions, outputs: Outputs, seed: int, state: Path | None
    ) -> tuple[RunRecord, dict[str, Any]]:
        parts = {
            "drop": drop,
            "seed": seed,
            "devices": parse_devices(devices, Network.parse(network), clients=wanted.clients, seed=seed),
            "clients_at_once": clients_at_once,
            "state": state,
            "policy": policy_of(policy or None, wanted.clients),
            "initial": initial,
        }
        with make_executor(trains, wanted.app, wanted.clients, workers, clients_at_once) as executor:
            return carried_out(wanted, outputs, track, executor, parts)

    with _interruptible(state):
        if seeds or vary:
            spent = _several(wanted, outputs, state, _points(wanted, seeds, vary, seed), once, as_json=as_json)
        else:
            outputs.check(wanted.settings)
            record, summary = once(wanted, outputs, seed, state)
            print_json(summary) if as_json else _print_metrics(record, summary)
            spent = bool(record.reason)
    if spent:  # finished, but by its privacy budget
        raise typer.Exit(BudgetSpent.exit_code)


@contextlib.contextmanager
def _interruptible(state: Path | None) -> Iterator[None]:
    """Let SIGTERM, which schedulers send, do what Ctrl-C does: workers end, temporary files go. Say how to go on."""
    heard = threading.current_thread() is threading.main_thread()  # no other thread may say what a signal does
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if heard else None
    try:
        yield
    except KeyboardInterrupt:
        if state is not None:
            typer.echo(f"interrupted; the same command goes on with what is kept in {state}", err=True)
        raise
    finally:
        if heard:
            signal.signal(signal.SIGTERM, before)


def _points(wanted: SimulationOptions, seeds: str, vary: list[str] | None, seed: int) -> list[SweepPoint]:
    from fedcore.cli.sweep import points_of

    settings = wanted.settings.to_mapping()
    return points_of(seeds, vary or [], seed=seed, run_config=wanted.run_config, settings=settings)


def _several(
    wanted: SimulationOptions,
    outputs: Outputs,
    state: Path | None,
    points: list[SweepPoint],
    once: Once,
    *,
    as_json: bool,
) -> bool:
    """One run for each point, and the table of all, or of those before one that failed.

    Their settings and places are checked before the first begins. Returns whether one was ended by its privacy budget.
    """
    runs = [(point, wanted.at(point), outputs.at(point)) for point in points]
    for _, each, places in runs:
        places.check(each.settings)
    summaries: list[dict[str, Any]] = []
    spent = False
    try:
        for number, (point, each, places) in enumerate(runs, start=1):
            typer.echo(f"run {number} of {len(runs)}: {point.name}", err=True)
            record, summary = once(each, places, point.seed, point.place(state, folder=True))
            summaries.append({"seed": point.seed, "values": dict(point.values), **summary})
            spent = spent or bool(record.reason)
    finally:
        if summaries:
            _print_several(summaries, as_json=as_json)
    return spent


def _print_several(summaries: list[dict[str, Any]], *, as_json: bool) -> None:
    from fedcore.cli.sweep import row_of

    rows = [
        row_of(values, found, [one["seed"] for one in found])
        for values, found in ((found[0]["values"], found) for found in _by_values(summaries))
    ]
    print_json({"runs": summaries, "table": rows}) if as_json else _print_table(rows)


def _by_values(summaries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The runs of each combination, which follow one another."""
    return [list(found) for _, found in itertools.groupby(summaries, key=lambda one: one["values"])]


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedcore.cli.sweep import lines_of

    header, *lines = lines_of(rows)
    table = Table(*header, box=None)
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def carried_out(
    wanted: SimulationOptions,
    outputs: Outputs,
    track: list[str] | None,
    executor: ClientExecutor,
    parts: Mapping[str, Any],
) -> tuple[RunRecord, dict[str, Any]]:
    """Simulate, showing how it goes on, and keep what is wanted of it: its record, and the summary for a program.

    parts: the other fields of the `Simulation`.
    """
    from fedcore.monitoring.run_record import RunRecord
    from fedcore.simulation import Simulation
    from fedcore.simulation.workers.progress import ProgressExecutor
    from fedcore.system.files import private_folder
    from fedcore.system.memory import set_aside

    record = RunRecord()
    with private_folder() as folder, user_output_to_stderr(), _followed(wanted, record, track) as followed:
        view, tracking, emit = followed
        simulation = Simulation(
            app=wanted.app,
            clients=wanted.clients,
            run_config=wanted.run_config,
            settings=wanted.settings,
            folder=folder,
            emit=emit,
            executor=ProgressExecutor(executor, view.works),
            on_loaded=set_aside,  # Flower collects garbage for every reply that Bulyan and QFedAvg read
            **parts,
        )
        outcome = _run(simulation, outputs, folder)
        places = outputs.results(simulation, folder)
        for kind, file in outputs.models(simulation, outcome.state, record):
            tracking.keep(file, kind)
        curve = outputs.reported(wanted, simulation, outcome.state, record)
    return record, _summary(wanted, outputs, simulation, record, curve) | places


@contextlib.contextmanager
def _followed(
    wanted: SimulationOptions, record: RunRecord, track: list[str] | None
) -> Iterator[tuple[ProgressView, Tracking, EventSink]]:
    """Show how a run goes on, for the record and the trackers too: the view, the trackers, and who takes the events."""
    from rich.console import Console

    from fedcore.comparison.target import Unseen
    from fedcore.flower.output import quiet_flower
    from fedcore.monitoring.progress import ProgressView
    from fedcore.monitoring.trackers import Tracking, parse_tracks
    from fedcore.wire.events import Warned

    started, tracks = time.monotonic(), parse_tracks(track)
    # The progress view says it already; Flower's own lines would bury it.
    quiet_flower()
    with (
        ProgressView(Console(stderr=True), "simulated", clients=wanted.clients) as view,
        Tracking.begin(tracks, _tracked(wanted), lambda line: view.show(Warned(line=line))) as tracking,
    ):
        unseen = None if wanted.target is None else Unseen(wanted.target)

        def emit(event: RunEvent) -> None:
            record.add(event, time.monotonic() - started)
            view.show(event)
            tracking(event)
            if unseen is not None and (doubt := unseen.take(event)):
                emit(Warned(line=doubt))

        yield view, tracking, emit


def _run(simulation: Simulation, outputs: Outputs, left: Path) -> ServerAppOutcome:
    """To its end; of a run that fails, say where what it found and left is kept."""
    from fedcore.monitoring.output_paths import saved_lines

    try:
        return simulation.run()
    except BaseException:
        for line in saved_lines(outputs.results(simulation, left)):
            typer.echo(line, err=True)
        raise


def _summary(
    wanted: SimulationOptions,
    outputs: Outputs,
    simulation: Simulation,
    record: RunRecord,
    curve: Sequence[CurvePoint] | None,
) -> dict[str, Any]:
    """What a program wants to know of a run, as plain JSON. curve: that of its report, None without one."""
    summary = {"app": wanted.app.name, "clients": wanted.clients, **record.summary(), "results": simulation.results}
    if wanted.target is not None:
        from fedcore.comparison.simulated import model_curve

        summary["target"] = wanted.target.told(curve or model_curve(record, simulation.results))
    summary["model"] = str(outputs.out) if outputs.out else None
    summary["best_model"] = str(outputs.best) if outputs.best and simulation.best is not None else None
    summary["report"] = str(outputs.report) if outputs.report else None
    return summary


def _tracked(wanted: SimulationOptions) -> Any:
    from fedcore.flower.app import AppBundle
    from fedcore.monitoring.trackers import TrackedRun

    return TrackedRun(
        name=f"{wanted.app.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        app=wanted.app.name,
        app_sha256=AppBundle.from_folder(wanted.app.folder).sha256,
        run_config=wanted.run_config,
        settings=wanted.settings.to_mapping(),
    )


def _print_metrics(record: RunRecord, summary: Mapping[str, Any]) -> None:
    from rich.console import Console

    from fedcore.monitoring.output_paths import saved_lines, server_line
    from fedcore.monitoring.progress import epsilon_line, metrics_text
    from fedcore.system.terminal import escape

    metrics = metrics_text(summary["metrics"])
    lines = [f"{summary['app']}: {summary['rounds']} rounds, {metrics}", server_line(summary["results"])]
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
