"""The command `fedcore demo`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

FAILED = 1
MODES = "federated,local,centralized"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report, models and logs.")] = Path("demo-out"),
    open_: Annotated[
        bool, typer.Option("--open", help="Leave a federation running instead, with its page open in the browser.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report, or with --open the address, as JSON.")] = (
        False
    ),
) -> None:
    """Train handwritten digits at four sites: together with secure aggregation, each alone, and with pooled data.

    Example: fedcore demo

    It runs a private federation of real processes on this machine: one server and four clients, each with its part of
    the data. It replaces an earlier demo in the folder.
    """
    from rich.console import Console

    from fedcore.cli.compare_console import show, watch
    from fedcore.cli.demo import SITES, digits
    from fedcore.cli.demo.live import leave_open
    from fedcore.comparison.modes import parse_modes
    from fedcore.comparison.plan import SEED, CompareJob, parse_seeds
    from fedcore.flower.app import FlowerApp

    console = Console(stderr=as_json)
    app = FlowerApp.load(digits())
    if open_:
        leave_open(app, console, as_json=as_json)
        return
    job = CompareJob(
        app=app,
        modes=parse_modes(MODES),
        sites=SITES,
        out=out.absolute(),
        seeds=parse_seeds("", app.run_config.get(SEED)),
    )
    comparison = watch(job, console, drop=False, force=True)
    show(comparison, job.out, console, as_json=as_json)
    if any(run.status == "failed" for run in comparison.runs):
        raise typer.Exit(FAILED)
    # As `make demo` leaves it: installed in a folder that no shell looks into.
    command = "fedcore" if shutil.which("fedcore") else os.path.relpath(Path(sys.executable).with_name("fedcore"))
    console.print(f"next: {command} demo --open shows a federation as it trains", highlight=False)
