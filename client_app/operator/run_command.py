"""The command `fedcore run`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli import AppFolder, RunConfig, Settings
from fedcore.errors import ConfigurationError


def run(
    app: AppFolder,
    server: Annotated[str, typer.Option(help="URL of the server; by default the one in the operator's kit.")] = "",
    operator: Annotated[
        Path, typer.Option(envvar="FEDCORE_OPERATOR", help="The operator's kit: token, CA and the server's address.")
    ] = Path("federation/operator"),
    run_config: RunConfig = None,
    set_: Settings = None,
    out: Annotated[Path, typer.Option(help="Where the model is saved, results and files beside it.")] = Path(
        "model.safetensors"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace a file of that name.")] = False,
    connect_seconds: Annotated[float, typer.Option(help="How long to try to reach the server.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines, then a summary.")] = False,
) -> None:
    """Submit a run as operator, follow it, and save the model and what the app found. Ctrl-C cancels the run.

    Example: fedcore run examples/digits --operator fed/operator --run-config num-server-rounds=5
    """
    _check_out(out, force=force)
    from client_app.operator.run import run_app

    run_app(
        app,
        operator,
        server=server,
        run_config=run_config or [],
        settings=set_ or [],
        out=out,
        connect_seconds=connect_seconds,
        as_json=as_json,
    )


def _check_out(out: Path, *, force: bool) -> None:
    """Refuse a path that no model can be saved to now, and not after hours of training."""
    if out.is_dir():
        raise ConfigurationError(f"--out: {out} is a folder; name the file for the model")
    from fedcore.results_home import Home

    Home.beside(out).check_free(force=force)
    parent = next(path for path in out.absolute().parents if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--out: no file can be made in {parent}; name another place for the model")
