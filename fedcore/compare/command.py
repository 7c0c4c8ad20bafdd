"""`fedcore compare`: the same app in several modes, each in real processes, in one report."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedcore.cli import INTERRUPTED, DataFolder, RunConfig
from fedcore.compare.job import (
    ALL_MODES,
    SEED,
    CompareJob,
    describe,
    parse_kill,
    parse_seeds,
    parse_sweep,
)
from fedcore.compare.modes import MODES, every_mode, parse_modes
from fedcore.compare.network import Network
from fedcore.compare.report import Comparison, merge, read_reports, terminal_table, write_report
from fedcore.config import parse_assignments
from fedcore.errors import ConfigurationError
from fedcore.events import EventSink
from fedcore.flower.app import FlowerApp
from fedcore.progress import ProgressView

if TYPE_CHECKING:
    from fedcore.compare.execution import RunStart

FAILED = 1


def compare(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="APP_DIR", help="Folder of a Flower app; with --from, reports.")
    ] = None,
    modes: Annotated[
        str, typer.Option(help="Comma-separated, each with its options: ps-ssp\\[s=3]; or all. See --list-modes.")
    ] = "federated,centralized",
    clients: Annotated[int, typer.Option(min=2, help="Number of sites: clients, workers or ranks.")] = 4,
    partition: Annotated[
        str, typer.Option(help="How the app divides its data: iid, dirichlet:ALPHA, shards:COUNT, natural.")
    ] = "",
    seeds: Annotated[str, typer.Option(help="How many seeds from the app's own on, or a list: 5, or 42,43.")] = "",
    network: Annotated[
        str, typer.Option(help="Imagine it on lan, wan, or bandwidth=100Mbit,latency=50ms,slow=2:4; none for neither.")
    ] = "none",
    run_config: RunConfig = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value or key=value,value to sweep over, of the run config, the modes' options or "
            "\\[tool.fedcore]; repeatable.",
        ),
    ] = None,
    kill: Annotated[str, typer.Option(help="End a site's worker in every mode: SITE@ROUND, as in client-2@3.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the report, models and logs.")] = Path("compare-out"),
    data_dir: DataFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier comparison in the folder.")] = False,
    from_: Annotated[bool, typer.Option("--from", help="Lay the report.json files named over one another.")] = False,
    list_modes: Annotated[bool, typer.Option("--list-modes", help="Print the modes and their options.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train the same app in several modes, each in real processes, and report them side by side.

    The same command again goes on where an interrupted one stopped.

    Example:  fedcore compare examples/digits --modes federated,centralized,allreduce --seeds 3 --out out
    """
    # On the terminal the report is the last thing to be seen; as JSON it is alone on standard output.
    console = Console(stderr=as_json)
    if list_modes:
        console.print(modes_table())
        return
    if from_:
        _overlay(paths or [], out.absolute(), console, force=force, as_json=as_json)
        return
    if paths is None or len(paths) != 1:
        raise ConfigurationError("name the folder of one Flower app, or report.json files after --from")
    app = FlowerApp.load(paths[0])
    config = parse_assignments(run_config or [])
    job = CompareJob(
        app=app,
        modes=parse_modes(modes if modes != ALL_MODES else ",".join(every_mode())),
        sites=clients,
        out=out.absolute(),
        seeds=parse_seeds(seeds, {**app.run_config, **config}.get(SEED)),
        partition=partition,
        network=Network.parse(network),
        run_config=config,
        sweep=parse_sweep(set_ or []),
        kill=parse_kill(kill) if kill else None,
        data_dir=data_dir.absolute() if data_dir else None,
    )
    comparison = _watched(job, console, drop=modes == ALL_MODES, force=force)
    _show(comparison, job.out, console, as_json=as_json)
    if any(run.status == "failed" for run in comparison.runs):
        raise typer.Exit(FAILED)


def _watched(job: CompareJob, console: Console, *, drop: bool, force: bool) -> Comparison:
    """Carry out a comparison with its progress on the console."""
    from fedcore.compare.execution import carry_out

    @contextlib.contextmanager
    def watch(start: RunStart) -> Iterator[EventSink]:
        left = f", about {_duration(start.seconds_left)} left" if start.seconds_left else ""
        console.print(
            f"run {start.number} of {start.total}: {escape(describe(start.run))}{left}", highlight=False, soft_wrap=True
        )
        with ProgressView(console, start.run.mode.label) as view:
            yield view.show

    try:
        comparison = carry_out(job, watch, drop=drop, force=force)
    except KeyboardInterrupt:
        console.print(
            f"interrupted; runs that finished are kept in {job.out}, and the same command without --force goes on",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    for run in comparison.runs:
        if run.status == "failed":
            text = f"{run.mode}, seed {run.seed} failed: {run.reason}"
            console.print(f"[red]{escape(text)}[/]", highlight=False, soft_wrap=True)
    return comparison


def _overlay(reports: list[Path], out: Path, console: Console, *, force: bool, as_json: bool) -> None:
    """Lay reports over one another, and write the report of all of them."""
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"--out: {out} is a file; name a folder")
    if out.exists() and any(out.iterdir()) and not (force and (out / "report.json").is_file()):
        raise ConfigurationError(f"{out} is not empty; choose another --out, or --force to replace a report in it")
    comparison = merge(read_reports(reports))
    out.mkdir(parents=True, exist_ok=True)
    _show(comparison, out, console, as_json=as_json)


def _show(comparison: Comparison, out: Path, console: Console, *, as_json: bool) -> None:
    """Write the report, and print it."""
    report = write_report(comparison, out)
    if as_json:
        sys.stdout.write(report)
        return
    console.print(terminal_table(comparison))
    console.print(f"report: {out}/report.html, report.md, report.json", highlight=False, soft_wrap=True)


def modes_table() -> Table:
    """Every mode with its options and their defaults."""
    table = Table("mode", "what it is", "options", box=box.SIMPLE_HEAVY, pad_edge=False)
    for name, mode in MODES.items():
        options = ", ".join(f"{key}={option.default}" for key, option in mode.options.items())
        table.add_row(name, mode.title, escape(options))
    return table


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
