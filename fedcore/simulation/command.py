"""The command `fedcore simulate`."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedcore.cli import (
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
from fedcore.errors import BudgetSpent, ConfigurationError

if TYPE_CHECKING:
    from fedcore.config import JobSettings
    from fedcore.events import RunEvent
    from fedcore.flower.app import FlowerApp
    from fedcore.record import RunRecord
    from fedcore.simulation import Simulation
    from fedcore.simulation.crew import Crew
    from fedcore.simulation.several import Point
    from fedcore.state import ModelState
    from fedcore.wire import Scalar

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
        help="Several runs, one for each value of a key of the run config or of [tool.fedcore]; repeatable.",
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
State = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Keep here all that it takes to go on; the same command again goes on where it was ended.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
# Carries out one run.
Once: TypeAlias = "Callable[[Wanted, Outputs, int, Path | None], tuple[RunRecord, dict[str, Any]]]"


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
    initial_model: InitialModel = None,
    track: Tracks = None,
    as_json: AsJson = False,
) -> None:
    """Run an app in memory, with the same state machines as the real server and clients.

    Example: fedcore simulate examples/digits --clients 100 --per-round 10 --run-config partition=iid
    """
    from fedcore.api.arguments import policy_of
    from fedcore.compare.measure.network import Network
    from fedcore.simulation.crews import checked_engine, crew_of
    from fedcore.simulation.devices import devices_of
    from fedcore.state import open_initial

    if data_dir is not None:
        os.environ["FEDCORE_DATA"] = str(data_dir.absolute())
    if aggregation:
        set_ = [*(set_ or []), f'aggregation="{aggregation}"']
    wanted = Wanted.of(app, clients, run_config, set_, per_round)
    outputs = Outputs(out=out, best=best, report=report, force=force)
    trains = checked_engine(engine)
    initial = None if initial_model is None else open_initial(initial_model)

    def once(wanted: Wanted, outputs: Outputs, seed: int, state: Path | None) -> tuple[RunRecord, dict[str, Any]]:
        parts = {
            "drop": drop,
            "seed": seed,
            "devices": devices_of(devices, Network.parse(network), clients=wanted.clients, seed=seed),
            "clients_at_once": clients_at_once,
            "state": state,
            "policy": policy_of(policy or None, wanted.clients),
            "initial": initial,
        }
        with crew_of(trains, wanted.app, wanted.clients, workers, clients_at_once) as crew:
            return carried_out(wanted, outputs, track, crew, parts)

    if seeds or vary:
        spent = _several(wanted, outputs, state, _points(wanted, seeds, vary, seed), once, as_json=as_json)
    else:
        outputs.check(wanted.settings)
        record, summary = once(wanted, outputs, seed, state)
        print_json(summary) if as_json else _print_metrics(record, summary)
        spent = bool(record.reason)
    if spent:  # finished, but by its privacy budget
        raise typer.Exit(BudgetSpent.exit_code)


def _points(wanted: Wanted, seeds: str, vary: list[str] | None, seed: int) -> list[Point]:
    from fedcore.simulation.several import points_of

    settings = wanted.settings.to_mapping()
    return points_of(seeds, vary or [], seed=seed, run_config=wanted.run_config, settings=settings)


def _several(
    wanted: Wanted, outputs: Outputs, state: Path | None, points: list[Point], once: Once, *, as_json: bool
) -> bool:
    """One run for each point, and the table of all; whether one was ended by its privacy budget.

    All are checked before the first begins.
    """
    from fedcore.simulation.several import row_of

    runs = [(point, wanted.at(point), outputs.at(point)) for point in points]
    for _, each, places in runs:
        places.check(each.settings)
    summaries, spent = [], False
    for number, (point, each, places) in enumerate(runs, start=1):
        typer.echo(f"run {number} of {len(runs)}: {point.name}", err=True)
        record, summary = once(each, places, point.seed, point.place(state, folder=True))
        summaries.append({"seed": point.seed, "values": dict(point.values), **summary})
        spent = spent or bool(record.reason)
    rows = [
        row_of(values, found, [one["seed"] for one in found])
        for values, found in ((found[0]["values"], found) for found in _by_values(summaries))
    ]
    print_json({"runs": summaries, "table": rows}) if as_json else _print_table(rows)
    return spent


def _by_values(summaries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The runs of each combination, which follow one another."""
    return [list(found) for _, found in itertools.groupby(summaries, key=lambda one: one["values"])]


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedcore.simulation.several import lines_of

    header, *lines = lines_of(rows)
    table = Table(*header, box=None)
    for line in lines:
        table.add_row(*line)
    Console().print(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be simulated: an app, how many clients it has, and the configuration with all that was given."""

    app: FlowerApp
    clients: int
    run_config: Mapping[str, Scalar]
    settings: JobSettings

    @classmethod
    def of(
        cls,
        folder: Path,
        clients: int | None,
        run_config: list[str] | None,
        settings: list[str] | None,
        per_round: int | None,
    ) -> Wanted:
        """Read the app and the options over its own values; raises ConfigurationError."""
        from fedcore.config import JobSettings, override, parse_assignments
        from fedcore.flower.app import FlowerApp
        from fedcore.simulation.crews import with_cohort

        app = FlowerApp.load(folder.absolute())
        clients = clients or app.simulation_clients
        given = parse_assignments(run_config or [])
        config = override(app.run_config, given, "the run config")
        return cls(
            app=app,
            clients=clients,
            run_config=with_cohort(config, given, per_round, clients),
            settings=JobSettings.from_mapping(
                {**app.settings.to_mapping(), **parse_assignments(settings or [])}, where="--set"
            ),
        )

    def at(self, point: Point) -> Wanted:
        """The same with the values of one of several runs, and its seed where the app has one."""
        from fedcore.config import JobSettings
        from fedcore.simulation.several import SEED

        config, settings = dict(self.run_config), self.settings.to_mapping()
        if SEED in config:
            config[SEED] = point.seed
        config |= {key: value for key, value in point.values.items() if key in config}
        changed = {key: value for key, value in point.values.items() if key not in config}
        made = JobSettings.from_mapping({**settings, **changed}, where="--vary") if changed else self.settings
        return replace(self, run_config=config, settings=made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where models and results are put. out: the last model. best: the best one.

    report: of the run. force: replace what is there.
    """

    out: Path | None
    best: Path | None
    report: Path | None
    force: bool

    def check(self, settings: JobSettings) -> None:
        """Refuse what can come to nothing before the run; raises ConfigurationError."""
        from fedcore.results_home import Home
        from fedcore.system.files import check_place

        if self.report is not None:
            from fedcore.compare.simulated import check_report_place

            check_report_place(self.report, force=self.force)
        if self.out is not None:
            Home.beside(self.out).check_free(force=self.force)
        if self.best is not None:
            if not settings.best_model:
                raise ConfigurationError(
                    "--best: nothing says which model is the best; --set best-model=eval_acc:max, say"
                )
            check_place(self.best, force=self.force, option="--best")

    def at(self, point: Point) -> Outputs:
        """The same for one of several runs: each in a folder of its own."""
        return replace(
            self,
            out=point.place(self.out, folder=False),
            best=point.place(self.best, folder=False),
            report=point.place(self.report, folder=True),
        )

    def results(self, simulation: Simulation, left: Path) -> dict[str, Any]:
        """Put what the ServerApp found, and the files that it left, beside the model; their places, by kind."""
        from fedcore.results_home import Home

        return {} if self.out is None else Home.beside(self.out).write(simulation.results, left)

    def reported(self, wanted: Wanted, simulation: Simulation, state: ModelState | None, record: RunRecord) -> None:
        """Write the report where it is wanted."""
        if self.report is None:
            return
        from fedcore.compare.report import write_report
        from fedcore.compare.simulated import comparison_of

        own = wanted.app.run_config
        comparison = comparison_of(
            record,
            simulation.results,
            app=wanted.app.name,
            clients=wanted.clients,
            run_config=wanted.run_config,
            settings=wanted.settings.to_mapping(),
            changed=[key for key, value in wanted.run_config.items() if value != own.get(key)],
            seed=simulation.seed,
            parameters=0 if state is None else sum(spec.size for spec in state.layout.specs),
        )
        self.report.mkdir(parents=True, exist_ok=True)
        write_report(comparison, self.report)

    def models(self, simulation: Simulation, state: ModelState | None, record: RunRecord) -> Iterator[tuple[str, Path]]:
        """Write the last and the best model where they are wanted; what was written."""
        from fedcore.simulation import best_facts, model_facts
        from fedcore.state import write_model

        if self.out is not None and state is not None:
            write_model(state, self.out, model_facts(simulation, record))
            yield "model", self.out
        if self.best is not None and simulation.best is not None:
            write_model(simulation.best.state, self.best, best_facts(simulation, record, simulation.best))
            yield "best", self.best


def carried_out(
    wanted: Wanted, outputs: Outputs, track: list[str] | None, crew: Crew, parts: Mapping[str, Any]
) -> tuple[RunRecord, dict[str, Any]]:
    """Simulate, showing how it goes on, and keep what is wanted of it: its record, and the summary for a program.

    parts: the other fields of the `Simulation`.
    """
    from rich.console import Console

    from fedcore.events import Warned
    from fedcore.flower.output import quiet_flower
    from fedcore.progress import ProgressView
    from fedcore.record import RunRecord
    from fedcore.results_home import saved_lines
    from fedcore.simulation import Simulation
    from fedcore.simulation.watched import WatchedCrew
    from fedcore.system.files import private_folder
    from fedcore.tracking import Tracking, parse_tracks

    record, started = RunRecord(), time.monotonic()
    tracks = parse_tracks(track)
    # The progress view says it already; Flower's own lines would bury it.
    quiet_flower()
    with (
        private_folder() as folder,
        user_output_to_stderr(),
        ProgressView(Console(stderr=True), "simulated", clients=wanted.clients) as view,
        Tracking.begin(tracks, _tracked(wanted), lambda line: view.show(Warned(line=line))) as tracking,
    ):

        def emit(event: RunEvent) -> None:
            record.add(event, time.monotonic() - started)
            view.show(event)
            tracking(event)

        simulation = Simulation(
            app=wanted.app,
            clients=wanted.clients,
            run_config=wanted.run_config,
            settings=wanted.settings,
            folder=folder,
            emit=emit,
            crew=WatchedCrew(crew, view.works),
            **parts,
        )
        try:
            outcome = simulation.run()
        except BaseException:
            for line in saved_lines(outputs.results(simulation, folder)):
                typer.echo(line, err=True)
            raise
        places = outputs.results(simulation, folder)
        for kind, file in outputs.models(simulation, outcome.state, record):
            tracking.keep(file, kind)
        outputs.reported(wanted, simulation, outcome.state, record)
    summary = {"app": wanted.app.name, "clients": wanted.clients, **record.summary(), "results": simulation.results}
    kept = {
        "model": str(outputs.out) if outputs.out else None,
        "report": str(outputs.report) if outputs.report else None,
    }
    return record, summary | {**kept, **places}


def _tracked(wanted: Wanted) -> Any:
    from fedcore.flower.app import AppBundle
    from fedcore.tracking import TrackedRun

    return TrackedRun(
        name=f"{wanted.app.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        app=wanted.app.name,
        app_sha256=AppBundle.from_folder(wanted.app.folder).sha256,
        run_config=wanted.run_config,
        settings=wanted.settings.to_mapping(),
    )


def _print_metrics(record: RunRecord, summary: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    from fedcore.progress import epsilon_line, metrics_text
    from fedcore.results_home import server_line

    metrics = metrics_text(summary["metrics"])
    lines = (f"{summary['app']}: {summary['rounds']} rounds, {metrics}", server_line(summary["results"]))
    for line in filter(None, lines):
        Console().print(escape(line), highlight=False, soft_wrap=True)
    if summary["report"]:
        Console().print(
            f"report: {summary['report']}/report.html, report.md, report.json", highlight=False, soft_wrap=True
        )
    if record.privacy is not None:
        line = epsilon_line(record.privacy, record.epsilon_spent() or 0.0)
        Console().print(line, highlight=False, soft_wrap=True)
