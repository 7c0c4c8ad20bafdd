"""The `fedcore` command.

Each command is a function, or a group of them, in a module that imports little more than typer, so that help and
completion are quick; what a command works with is imported when it runs. Commands of the apps are found through entry
points, so the library imports neither app.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import click
import typer
from typer.core import TyperGroup

from fedcore.cli import completion
from fedcore.errors import FedcoreError
from fedcore.system.plugins import installed
from fedcore.system.standard_output import checked_output
from fedcore.system.version import fedcore_version

GROUP: Final = "fedcore.commands"
# The order in which a new user needs the commands; entry points come in no order of their own.
ORDER: Final = (
    "demo", "new", "check", "partition", "provision", "federation", "server", "client", "login", "logout", "run",
    "runs", "stats", "transcript", "simulate", "privacy", "compare", "predict", "export", "card",
)  # fmt: skip

AppFolder = Annotated[Path, typer.Argument(metavar="APP_DIR", help="Folder of a Flower app.")]
RunConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--run-config",
        metavar="'K=V ...'",
        help="Override \\[tool.flwr.app.config], or a .toml file of values; repeatable.",
        autocompletion=completion.run_config,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="'K=V ...'",
        help="Override \\[tool.fedcore], or a .toml file of values; repeatable.",
        autocompletion=completion.settings,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
InitialModel = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Start from this model instead of the app's own: a safetensors file with the app's tensors.",
    ),
]
Tracks = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="KIND[:WHERE]",
        help=f"Track the run with {completion.names_of_trackers()}: in a folder, track/KIND by default, or at MLflow's "
        "URI; repeatable.",
        autocompletion=completion.trackers,
    ),
]
DataFolder = Annotated[
    Path | None, typer.Option("--data-dir", envvar="FEDCORE_DATA", help="Folder that holds the data sets.")
]


def provision_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    clients: Annotated[int, typer.Option(min=2, help="Number of clients, each with a kit.")],
    name: Annotated[
        str, typer.Option(help="Name of the federation.  \\[default: the folder's]", show_default=False)
    ] = "",
    host: Annotated[
        list[str] | None, typer.Option(help="Host name or address of the server, for its certificate; repeatable.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the server.  \\[default: 8443]")] = None,
    min_cohort: Annotated[
        int | None, typer.Option(min=2, help="Smallest cohort that every client's policy allows.")
    ] = None,
    min_threshold: Annotated[
        int | None, typer.Option(min=2, help="Smallest threshold that every client's policy allows.")
    ] = None,
    max_epsilon: Annotated[
        float | None,
        typer.Option(min=0.0, help="Largest epsilon of all runs together that a client's policy allows; 0 for any."),
    ] = None,
    policy_name: Annotated[
        Literal["stock", "strict", "own"],
        typer.Option(
            "--policy",
            help="What every client's policy starts from: stock; strict, which allows no sum without noise (epsilon "
            "8); or own, for clients that all belong to you.",
        ),
    ] = "stock",
    as_json: AsJson = False,
) -> None:
    """Create a private federation for trials: authority, server, operator, and a ready kit for every client.

    Example: fedcore provision fed --clients 4

    One person makes all private keys in one place. If clients belong to different owners, let each make its own key:
    fedcore federation create, fedcore client enroll.
    """
    from rich.console import Console

    from fedcore.federation import DEFAULT_HOSTS, DEFAULT_PORT, TWO_TELL_EACH_OTHER, Policy, name_after, provision
    from fedcore.monitoring.formatting import the_federation

    name, port = name or name_after(folder), port or DEFAULT_PORT
    ready = Policy.ready(policy_name, clients) or Policy.default(clients)
    policy = replace(
        ready,
        min_cohort=min_cohort or ready.min_cohort,
        min_threshold=min_threshold or ready.min_threshold,
        max_epsilon=ready.max_epsilon if max_epsilon is None else max_epsilon,
    )
    hosts = host or list(DEFAULT_HOSTS)
    provision(folder, name=name, clients=clients, now=datetime.now(UTC), hosts=hosts, port=port, policy=policy)
    warnings = [TWO_TELL_EACH_OTHER] if policy.min_cohort == 2 else []
    if as_json:
        print_json({"folder": str(folder), "federation": name, "clients": clients, "port": port, "warnings": warnings})
        return
    console = Console(highlight=False, soft_wrap=True)
    for text in warnings:
        Console(stderr=True).print(f"[yellow]warning:[/] {text}", highlight=False, soft_wrap=True)
    for line in (
        f"created {the_federation(name)} in {folder}, for {clients} clients",
        f"  server    {folder}/server        fedcore server --federation {folder}",
        f"  clients   {folder}/clients/*     fedcore client --kit {folder}/clients/client-1 --app APP_DIR",
        f"  operator  {folder}/operator      fedcore run APP_DIR --operator {folder}/operator",
        f"  authority {folder}/authority     keep it offline; it signs the roster",
        '  apps      the operator may run any app on the server, which is for trials (approve-apps = "any")',
        "all private keys were made here; if clients belong to others, let them enrol: fedcore federation create",
    ):
        console.print(line)


class _Commands(TyperGroup):
    """The installed commands in the order of their use. One is imported when it is asked for."""

    @cached_property
    def _installed(self) -> Mapping[str, EntryPoint]:
        own = {"provision": "fedcore.cli.main:provision_command", "simulate": "fedcore.cli.simulate:simulate"}
        own["demo"] = "fedcore.cli.demo.command:demo"
        own |= {"compare": "fedcore.cli.compare:compare", "check": "fedcore.cli.check:check"}
        own |= {"partition": "fedcore.cli.partition:partition", "privacy": "fedcore.cli.privacy:privacy"}
        own |= {name: f"fedcore.cli.trained:{name}" for name in ("predict", "export", "card")}
        own["new"] = "fedcore.cli.new.command:new"
        ours = (EntryPoint(name=name, value=value, group=GROUP) for name, value in own.items())
        return {entry.name: entry for entry in (*ours, *installed(GROUP))}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._installed, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._installed and cmd_name not in self.commands:
            self.commands[cmd_name] = _command(self._installed[cmd_name])
        return self.commands.get(cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a FedcoreError becomes one line on standard error and an exit status.

        After Ctrl-C typer ends with status 130, so a command that is interrupted tidies up and raises
        KeyboardInterrupt again.
        """
        try:
            return super().invoke(ctx)
        except FedcoreError as error:
            from rich.console import Console

            from fedcore.system.terminal import escape

            text = f"[bold red]error:[/] {escape(str(error))}"
            Console(stderr=True).print(text, highlight=False, soft_wrap=True)
            raise typer.Exit(error.exit_code) from None


def _command(entry: EntryPoint) -> click.Command:
    """What an entry point names, a function or a group, as a command of click's."""
    loaded = entry.load()
    if not isinstance(loaded, typer.Typer):
        function, loaded = loaded, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        loaded.command(entry.name)(function)
    command = typer.main.get_command(loaded)
    command.name = entry.name
    return command


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedcore {fedcore_version()}")
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
    with checked_output():
        app(prog_name="fedcore")


def print_json(value: Mapping[str, Any]) -> None:
    """Print a result for programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
