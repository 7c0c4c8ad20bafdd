"""The command `fedcore study`: the questions of an app's study plan."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from client_app.operator.stats_command import (
    CONNECT_SECONDS,
    OPERATOR,
    Clients,
    ConnectSeconds,
    Operator,
    Server,
    check_clients,
)
from fedcore.cli.main import AppFolder, DataFolder, RunConfig, Settings
from fedcore.errors import ConfigurationError


def study(
    app: AppFolder,
    out: Annotated[Path, typer.Option(help="Folder of the answers and the report.")],
    clients: Clients = 0,
    server: Server = "",
    operator: Operator = OPERATOR,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="What fedcore compare wrote for an app, for the report's last part; repeatable."
        ),
    ] = None,
    run_config: RunConfig = None,
    set_: Settings = None,
    data_dir: DataFolder = None,
    connect_seconds: ConnectSeconds = CONNECT_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print all answers as JSON.")] = False,
) -> None:
    """Ask the questions of an app's study plan, one after the other, and write one report of all answers.

    Example: fedcore study my_app --operator fed/operator --out study --compare out/network

    The plan is a file of the app, so sites that approved the app have agreed to it, and answer nothing else. An answer
    that the folder --out has already is not asked for again: the same command goes on where it was interrupted.
    """
    check_clients(clients, server, data_dir)
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"--out: {out} is no folder")
    from client_app.operator.stats import ask
    from client_app.operator.studies.study import ask_plan
    from fedcore.flower.app import FlowerApp

    asking = partial(
        ask, clients=clients, operator=operator, server=server, connect_seconds=connect_seconds,
        run_config=run_config or [], settings=set_ or [],
    )  # fmt: skip
    documents = ask_plan(FlowerApp.load(app), asking, out, compare or [])
    if as_json:
        sys.stdout.write(json.dumps(documents, indent=2) + "\n")
