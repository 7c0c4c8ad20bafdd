"""The `fedcore` command. Commands of the apps are found through entry points, so the library imports neither app."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from fedcore.config import JobSettings, override, parse_assignments
from fedcore.errors import BudgetSpent, FedcoreError
from fedcore.federation import DEFAULT_HOSTS, DEFAULT_PORT, Policy, provision
from fedcore.system.version import fedcore_version

if TYPE_CHECKING:
    from fedcore.events import RunEvent
    from fedcore.record import RunRecord

INTERRUPTED = 130
GROUP = "fedcore.commands"
# Loaded like the commands of the apps, when it is needed.
COMPARE = EntryPoint(name="compare", value="fedcore.compare.command:compare", group=GROUP)
# The order in which a new user needs the commands; entry points come in no order of their own.
ORDER = ("provision", "server", "client", "run", "simulate", "compare")

AppFolder = Annotated[Path, typer.Argument(metavar="APP_DIR", help="Folder of a Flower app.")]
RunConfig = Annotated[
    list[str] | None, typer.Option("--run-config", help="key=value over \\[tool.flwr.app.config]; repeatable.")
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="key=value over \\[tool.fedcore]; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
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
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the server.")] = DEFAULT_PORT,
    min_cohort: Annotated[int | None, typer.Option(min=2, help="Least cohort in every client's policy.")] = None,
    min_threshold: Annotated[int | None, typer.Option(min=2, help="Least threshold in every client's policy.")] = None,
    max_epsilon: Annotated[
        float, typer.Option(min=0.0, help="Most epsilon that any client's policy allows, all runs together; 0 for any.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Make a private federation: authority key, roster, private CA, and a kit for every client.

    Example:  fedcore provision fed --clients 4
    """
    default = Policy.default(clients)
    policy = Policy(
        min_cohort=min_cohort or default.min_cohort,
        min_threshold=min_threshold or default.min_threshold,
        app_sha256=default.app_sha256,
        max_epsilon=max_epsilon,
    )
    provision(
        folder,
        name=name,
        clients=clients,
        now=datetime.now(UTC),
        hosts=host or list(DEFAULT_HOSTS),
        port=port,
        policy=policy,
    )
    if as_json:
        _print_json({"folder": str(folder), "federation": name, "clients": clients, "port": port})
        return
    console = Console()
    console.print(f"made the federation {name!r} in {folder}, for {clients} clients", highlight=False, soft_wrap=True)
    console.print(
        f"  server    {folder}/server        fedcore server --federation {folder}", highlight=False, soft_wrap=True
    )
    console.print(
        f"  clients   {folder}/clients/*     fedcore client --kit {folder}/clients/client-1 --app APP_DIR",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"  operator  {folder}/operator      fedcore run APP_DIR --operator {folder}/operator",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"  authority {folder}/authority     keep it offline: it signs the roster", highlight=False, soft_wrap=True
    )


def simulate_command(
    app: AppFolder,
    clients: Annotated[int, typer.Option(min=1, help="Number of simulated clients.")],
    drop: Annotated[float, typer.Option(min=0.0, max=0.99, help="Chance that a client drops out of a round.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the simulated dropouts.")] = 0,
    run_config: RunConfig = None,
    set_: Settings = None,
    data_dir: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="Save the final model here, as safetensors.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run an app in memory, with the same state machines as the real server and clients.

    Example:  fedcore simulate examples/digits --clients 10 --drop 0.1
    """
    _use_data(data_dir)
    from fedcore.flower.app import FlowerApp
    from fedcore.progress import ProgressView
    from fedcore.record import RunRecord
    from fedcore.simulate import Simulation

    flower = FlowerApp.load(app)
    settings = JobSettings.from_mapping(
        {**flower.settings.to_mapping(), **parse_assignments(set_ or [])}, where="--set"
    )
    record = RunRecord()
    started = time.monotonic()
    # The progress view says it already; Flower's own lines would bury it.
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with _user_output_to_stderr(), ProgressView(Console(stderr=True), "simulated") as view:

        def emit(event: RunEvent) -> None:
            record.add(event, time.monotonic() - started)
            view.show(event)

        simulation = Simulation(
            app=flower,
            clients=clients,
            run_config=override(flower.run_config, parse_assignments(run_config or []), "the run config"),
            settings=settings,
            drop=drop,
            seed=seed,
            emit=emit,
        )
        state = simulation.run().state
    if out is not None and state is not None:
        state.save(out)
    summary = {"app": flower.name, "clients": clients, **record.summary(), "model": str(out) if out else None}
    _print_json(summary) if as_json else _print_metrics(record, summary)
    if record.reason:  # finished, but by its privacy budget
        raise typer.Exit(BudgetSpent.exit_code)


class _InOrder(TyperGroup):
    """Lists commands and groups of commands together, in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def build(only: str = "") -> typer.Typer:
    """The command line with all installed commands.

    only: the command that is about to run. If it exists no other is loaded, since that takes longer than many
    commands take themselves.
    """
    app = typer.Typer(
        name="fedcore",
        cls=_InOrder,
        help="Federated learning whose server learns only sums.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands: dict[str, Callable[..., Any] | typer.Typer] = {
        "provision": provision_command,
        "simulate": simulate_command,
    }
    installed = {found.name: found for found in (COMPARE, *entry_points(group=GROUP))}
    if only in commands:
        installed = {}
    elif only in installed:
        commands, installed = {}, {only: installed[only]}
    commands |= {name: found.load() for name, found in installed.items()}
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    app.callback()(_root)
    return app


def main() -> None:
    """Run the command line; errors of ours become one line on standard error and an exit status."""
    try:
        build(only=next((word for word in sys.argv[1:] if not word.startswith("-")), ""))()
    except FedcoreError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(INTERRUPTED)


def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if show_version:
        typer.echo(fedcore_version())
        raise typer.Exit


def _use_data(data_dir: Path | None) -> None:
    if data_dir is not None:
        os.environ["FEDCORE_DATA"] = str(data_dir.absolute())


@contextlib.contextmanager
def _user_output_to_stderr() -> Iterator[None]:
    """What an app prints must not mix with the result on standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _print_metrics(record: RunRecord, summary: Mapping[str, Any]) -> None:
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in summary["metrics"].items() if isinstance(value, float))
    Console().print(f"{summary['app']}: {summary['rounds']} rounds, {metrics}", highlight=False)
    if record.privacy is not None:
        from fedcore.progress import epsilon_line

        line = epsilon_line(record.privacy, record.epsilon_spent() or 0.0)
        Console().print(line, highlight=False, soft_wrap=True)
