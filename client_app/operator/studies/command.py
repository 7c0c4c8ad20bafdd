"""The command `fedcore study`: the questions of an app's study plan."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli.main import AppFolder, DataFolder, RunConfig, Settings
from fedcore.errors import ConfigurationError


def study(
    app: AppFolder,
    out: Annotated[Path, typer.Option(help="Folder of the answers and the report.")],
    clients: Annotated[int, typer.Option(min=0, help="Ask this many simulated clients in memory, and no server.")] = 0,
    server: Annotated[str, typer.Option(help="URL of the server; by default the one in the operator's kit.")] = "",
    operator: Annotated[
        Path, typer.Option(envvar="FEDCORE_OPERATOR", help="The operator's kit: token, CA and the server's address.")
    ] = Path("federation/operator"),
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="What fedcore compare wrote for an app, for the report's last part; repeatable."
        ),
    ] = None,
    run_config: RunConfig = None,
    set_: Settings = None,
    data_dir: DataFolder = None,
    connect_seconds: Annotated[float, typer.Option(help="How long to try to reach the server.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all answers as JSON.")] = False,
) -> None:
    """Ask the questions of an app's study plan, one after the other, and write one report of all answers.

    Example: fedcore study my_app --operator fed/operator --out study --compare out/network

    The plan is a file of the app, so sites that approved the app have agreed to it, and answer nothing else. An answer
    that the folder --out has already is not asked for again: the same command goes on where it was interrupted.
    """
    if clients and server:
        raise ConfigurationError("--clients asks simulated clients in memory, --server a federation; give one of them")
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"--out: {out} is no folder")
    if data_dir is not None and clients:
        os.environ["FEDCORE_DATA"] = str(data_dir.absolute())
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
