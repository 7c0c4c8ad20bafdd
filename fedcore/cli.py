"""The `fedcore` command.

Each command is a function, or a group of them, in a module that imports little more than typer, so that help and
completion are quick; what a command works with is imported when it runs. Commands of the apps are found through entry
points, so the library imports neither app.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
import typer
from typer.core import TyperGroup

import fedcore
from fedcore import completion
from fedcore.errors import BudgetSpent, ConfigurationError, FedcoreError

if TYPE_CHECKING:
    from fedcore.events import RunEvent
    from fedcore.record import RunRecord
    from fedcore.simulation import Simulation
    from fedcore.state import ModelState

GROUP: Final = "fedcore.commands"
# The order in which a new user needs the commands; entry points come in no order of their own.
ORDER: Final = (
    "demo", "new", "check", "provision", "federation", "server", "client", "run", "runs", "stats", "transcript",
    "simulate", "compare", "predict", "export", "card",
)  # fmt: skip

AppFolder = Annotated[Path, typer.Argument(metavar="APP_DIR", help="Folder of a Flower app.")]
RunConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--run-config",
        metavar="'K=V ...'",
        help="Values over \\[tool.flwr.app.config]; repeatable.",
        autocompletion=completion.run_config,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="'K=V ...'",
        help="Values over \\[tool.fedcore]; repeatable.",
        autocompletion=completion.settings,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
InitialModel = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Start from this model, a safetensors file with the app's tensors, in place of the app's own.",
    ),
]
Tracks = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="KIND\\[:WHERE]",
        help="Tell tensorboard, mlflow or wandb of it: in a folder, track/KIND by default, or at MLflow's URI; "
        "repeatable.",
    ),
]
DataFolder = Annotated[
    Path | None, typer.Option("--data-dir", envvar="FEDCORE_DATA", help="Folder that holds the data sets.")
]


def provision_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    clients: Annotated[int, typer.Option(min=2, help="How many clients get a kit.")],
    name: Annotated[str, typer.Option(help="Name of the federation.")] = "federation",
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server, for its certificate; repeatable.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the server.  \\[default: 8443]")] = None,
    min_cohort: Annotated[int | None, typer.Option(min=2, help="Least cohort in every client's policy.")] = None,
    min_threshold: Annotated[int | None, typer.Option(min=2, help="Least threshold in every client's policy.")] = None,
    max_epsilon: Annotated[
        float, typer.Option(min=0.0, help="Most epsilon that any client's policy allows, all runs together; 0 for any.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Make a private federation to try things out: authority, server, operator, and a ready kit for every client.

    Example: fedcore provision fed --clients 4

    Everybody's private keys are then made in one place, by one person. Where clients belong to different people, each
    makes its own key: fedcore federation create, fedcore client enroll.
    """
    from rich.console import Console

    from fedcore.federation import DEFAULT_HOSTS, DEFAULT_PORT, Policy, provision

    port = port or DEFAULT_PORT
    default = Policy.default(clients)
    policy = replace(
        default,
        min_cohort=min_cohort or default.min_cohort,
        min_threshold=min_threshold or default.min_threshold,
        max_epsilon=max_epsilon,
    )
    hosts = host or list(DEFAULT_HOSTS)
    provision(folder, name=name, clients=clients, now=datetime.now(UTC), hosts=hosts, port=port, policy=policy)
    if as_json:
        _print_json({"folder": str(folder), "federation": name, "clients": clients, "port": port})
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in (
        f"made the federation {name!r} in {folder}, for {clients} clients",
        f"  server    {folder}/server        fedcore server --federation {folder}",
        f"  clients   {folder}/clients/*     fedcore client --kit {folder}/clients/client-1 --app APP_DIR",
        f"  operator  {folder}/operator      fedcore run APP_DIR --operator {folder}/operator",
        f"  authority {folder}/authority     keep it offline: it signs the roster",
        '  apps      the operator may run any app on the server, which is for trying things out (approve-apps = "any")',
        "all private keys were made here; where clients belong to others, let them enrol: fedcore federation create",
    ):
        console.print(line)


def simulate_command(
    app: AppFolder,
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="Number of simulated clients.  \\[default: the app's simulation-clients, or 10]"),
    ] = None,
    drop: Annotated[float, typer.Option(min=0.0, max=0.99, help="Chance that a client drops out of a round.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the simulated dropouts.")] = 0,
    run_config: RunConfig = None,
    set_: Settings = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="FILE|stock|own",
            help="What the clients' owners insist on: a policy.toml, that of stock kits, or that of clients which are "
            "all yours. By default that of stock kits, but run config, settings and plain aggregation are yours.",
        ),
    ] = "",
    data_dir: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(help="Save the final model here, as safetensors; results and files beside it.")
    ] = None,
    best: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the best model here, by the setting best-model.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    initial_model: InitialModel = None,
    track: Tracks = None,
    as_json: AsJson = False,
) -> None:
    """Run an app in memory, with the same state machines as the real server and clients.

    Example: fedcore simulate examples/digits --drop 0.1
    """
    from rich.console import Console

    from fedcore.api.arguments import policy_of
    from fedcore.config import JobSettings, override, parse_assignments
    from fedcore.events import Warned
    from fedcore.flower.app import AppBundle, FlowerApp
    from fedcore.flower.output import quiet_flower
    from fedcore.progress import ProgressView
    from fedcore.record import RunRecord
    from fedcore.results_home import Home, saved_lines
    from fedcore.simulation import Simulation
    from fedcore.state import open_initial
    from fedcore.system.files import private_folder
    from fedcore.tracking import TrackedRun, Tracking, parse_tracks

    if data_dir is not None:
        os.environ["FEDCORE_DATA"] = str(data_dir.absolute())
    home = Home.beside(out) if out is not None else None
    if home is not None:
        home.check_free(force=force)
    flower = FlowerApp.load(app.absolute())
    clients = clients or flower.simulation_clients
    settings = JobSettings.from_mapping(
        {**flower.settings.to_mapping(), **parse_assignments(set_ or [])}, where="--set"
    )
    config = override(flower.run_config, parse_assignments(run_config or []), "the run config")
    name = f"{flower.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    tracked = TrackedRun(
        name=name,
        app=flower.name,
        app_sha256=AppBundle.from_folder(flower.folder).sha256,
        run_config=config,
        settings=settings.to_mapping(),
    )
    tracks = parse_tracks(track)
    if best is not None:
        _check_best(best, settings.best_model, force=force)
    record = RunRecord()
    started = time.monotonic()
    # The progress view says it already; Flower's own lines would bury it.
    quiet_flower()
    with (
        private_folder() as folder,
        user_output_to_stderr(),
        ProgressView(Console(stderr=True), "simulated") as view,
        Tracking.begin(tracks, tracked, lambda line: view.show(Warned(line=line))) as tracking,
    ):

        def emit(event: RunEvent) -> None:
            record.add(event, time.monotonic() - started)
            view.show(event)
            tracking(event)

        simulation = Simulation(
            app=flower,
            clients=clients,
            run_config=config,
            settings=settings,
            drop=drop,
            seed=seed,
            policy=policy_of(policy or None, clients),
            folder=folder,
            initial=None if initial_model is None else open_initial(initial_model),
            emit=emit,
        )
        try:
            outcome = simulation.run()
        except BaseException:
            for line in saved_lines(home.write(simulation.results, folder)) if home is not None else ():
                typer.echo(line, err=True)
            raise
        places = home.write(simulation.results, folder) if home is not None else {}
        for kind, file in _save_models(simulation, outcome.state, record, home.model if home else None, best):
            tracking.keep(file, kind)
        tracking.results(simulation.results)
    summary = {"app": flower.name, "clients": clients, **record.summary(), "results": simulation.results}
    summary |= {"model": str(out) if out else None, **places}
    _print_json(summary) if as_json else _print_metrics(record, summary)
    if record.reason:  # finished, but by its privacy budget
        raise typer.Exit(BudgetSpent.exit_code)


def _save_models(
    simulation: Simulation, state: ModelState | None, record: RunRecord, out: Path | None, best: Path | None
) -> Iterator[tuple[str, Path]]:
    """Write the last and the best model of a simulation where they are wanted; what was written."""
    from fedcore.simulation import best_facts, model_facts
    from fedcore.state import write_model

    if out is not None and state is not None:
        write_model(state, out, model_facts(simulation, record))
        yield "model", out
    if best is not None and simulation.best is not None:
        write_model(simulation.best.state, best, best_facts(simulation, record, simulation.best))
        yield "best", best


def _check_best(file: Path, rule: str, *, force: bool) -> None:
    """Refuse what can come to nothing before the run."""
    from fedcore.system.files import check_place

    if not rule:
        raise ConfigurationError("--best: nothing says which model is the best; --set best-model=eval_acc:max, say")
    check_place(file, force=force, option="--best")


class _Commands(TyperGroup):
    """The installed commands in the order of their use. One is imported when it is asked for."""

    @cached_property
    def _installed(self) -> Mapping[str, EntryPoint]:
        own = {"provision": "fedcore.cli:provision_command", "simulate": "fedcore.cli:simulate_command"}
        own["demo"] = "fedcore.demo.command:demo"
        own |= {"compare": "fedcore.compare.command:compare", "check": "fedcore.checking.command:check"}
        own |= {name: f"fedcore.trained.command:{name}" for name in ("predict", "export", "card")}
        own["new"] = "fedcore.templates.command:new"
        ours = (EntryPoint(name=name, value=value, group=GROUP) for name, value in own.items())
        return {found.name: found for found in (*ours, *entry_points(group=GROUP))}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._installed, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._installed and cmd_name not in self.commands:
            self.commands[cmd_name] = _command(self._installed[cmd_name])
        return self.commands.get(cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of ours becomes one line on standard error and an exit status.

        After Ctrl-C typer ends with status 130, so a command that is interrupted tidies up and raises
        KeyboardInterrupt again.
        """
        try:
            return super().invoke(ctx)
        except FedcoreError as error:
            from rich.console import Console
            from rich.markup import escape

            text = f"[bold red]error:[/] {escape(str(error))}"
            Console(stderr=True).print(text, highlight=False, soft_wrap=True)
            raise typer.Exit(error.exit_code) from None


def _command(found: EntryPoint) -> click.Command:
    """What an entry point names, a function or a group, as a command of click's."""
    loaded = found.load()
    if not isinstance(loaded, typer.Typer):
        function, loaded = loaded, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        loaded.command(found.name)(function)
    command = typer.main.get_command(loaded)
    command.name = found.name
    return command


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedcore {fedcore.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="fedcore",
    cls=_Commands,
    no_args_is_help=True,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Federated learning whose server learns only sums.

    Example: fedcore simulate examples/digits
    """


def main() -> None:
    """Run the command line."""
    app(prog_name="fedcore")


@contextlib.contextmanager
def user_output_to_stderr() -> Iterator[None]:
    """What an app prints must not mix with the result on standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _print_metrics(record: RunRecord, summary: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    from fedcore.progress import metrics_text
    from fedcore.results_home import server_line

    metrics = metrics_text(summary["metrics"])
    lines = (f"{summary['app']}: {summary['rounds']} rounds, {metrics}", server_line(summary["results"]))
    for line in filter(None, lines):
        Console().print(escape(line), highlight=False, soft_wrap=True)
    if record.privacy is not None:
        from fedcore.progress import epsilon_line

        line = epsilon_line(record.privacy, record.epsilon_spent() or 0.0)
        Console().print(line, highlight=False, soft_wrap=True)
