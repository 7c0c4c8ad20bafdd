"""A comparison on a terminal: progress, report, and the list of modes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from fedcore.comparison.app_probe import AppFacts, find_facts
from fedcore.comparison.execution import RunStart, execute_comparison
from fedcore.comparison.modes import MODES
from fedcore.comparison.plan import CompareJob, plan
from fedcore.comparison.report import (
    EXPORT_FOLDER,
    Comparison,
    export,
    merge,
    read_reports,
    terminal_table,
    write_report,
)
from fedcore.comparison.run import MODEL_FILE, PlannedRun
from fedcore.errors import ConfigurationError
from fedcore.monitoring.progress import ProgressView
from fedcore.monitoring.trackers import Track, TrackedRun, Tracking
from fedcore.system.terminal import escape
from fedcore.wire.events import EventSink, RunEvent, Warned


def watch(
    job: CompareJob,
    console: Console,
    *,
    drop: bool,
    force: bool,
    tracks: Sequence[Track] = (),
    plain_check: bool = True,
    watts: float | None = None,
    facts: AppFacts | None = None,
) -> Comparison:
    """Carry out a comparison with its progress on the console; every run that begins is tracked by itself."""

    @contextlib.contextmanager
    def progress(start: RunStart) -> Iterator[EventSink]:
        left = f", about {_duration(start.seconds_left)} left" if start.seconds_left else ""
        console.print(
            f"run {start.number} of {start.total}: {escape(str(start.run))}{left}", highlight=False, soft_wrap=True
        )
        with (
            ProgressView(console, start.run.label) as view,
            Tracking.begin(tracks, _tracked(start.run), lambda line: view.show(Warned(line=line))) as tracking,
        ):

            def emit(event: RunEvent) -> None:
                view.show(event)
                tracking(event)

            yield emit
            tracking.keep(start.run.folder / MODEL_FILE)

    def left_out(text: str) -> None:
        console.print(f"skipped {escape(text)}", highlight=False, soft_wrap=True)

    def tell(line: str) -> None:
        console.print(escape(line), highlight=False, soft_wrap=True)

    try:
        comparison = execute_comparison(
            job,
            progress,
            drop=left_out if drop else None,
            force=force,
            plain_rounds=plain_check,
            tell=tell,
            watts=watts,
            facts=facts,
        )
    except KeyboardInterrupt:
        text = f"interrupted; {job.out} has the finished runs; run the same command without --force to resume"
        console.print(text, highlight=False, soft_wrap=True)
        raise
    for run in comparison.runs:
        if run.status == "failed":
            text = f"{run.mode}, seed {run.seed} failed: {run.reason}"
            console.print(f"[red]{escape(text)}[/]", highlight=False, soft_wrap=True)
    return comparison


def _tracked(run: PlannedRun) -> TrackedRun:
    return TrackedRun(
        name=f"{run.folder.parents[1].name}-{run.folder.name}",
        app=run.app.name,
        run_config=run.config,
        settings=run.settings,
        tags={"mode": run.label, "seed": str(run.seed)},
    )


def overlay(
    reports: list[Path], out: Path, console: Console, *, force: bool, as_json: bool, forms: Sequence[str] = ()
) -> None:
    """Merge reports into one, and write it."""
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"--out: {out} is a file; name a folder")
    if out.exists() and any(out.iterdir()) and not (force and (out / "report.json").is_file()):
        raise ConfigurationError(f"{out} is not empty; choose another --out, or --force to replace a report in it")
    comparison = merge(read_reports(reports))
    out.mkdir(parents=True, exist_ok=True)
    show(comparison, out, console, as_json=as_json, forms=forms)


def show(comparison: Comparison, out: Path, console: Console, *, as_json: bool, forms: Sequence[str] = ()) -> None:
    """Write the report, and print it.

    Args:
        forms: for a paper, by `parse_export`.
    """
    report = write_report(comparison, out)
    if forms:
        for figure in (out / EXPORT_FOLDER).glob("*.svg"):  # of a report that this one replaces
            figure.unlink()
    files = export(comparison, forms, out / EXPORT_FOLDER) if forms else []
    if as_json:
        sys.stdout.write(report)
        return
    console.print(terminal_table(comparison))
    console.print(f"report: {out}/report.html, report.md, report.json", highlight=False, soft_wrap=True)
    if files:
        names = ", ".join(path.name for path in files)
        console.print(f"for a paper: {out}/{EXPORT_FOLDER}: {names}", highlight=False, soft_wrap=True)


def modes_table() -> Table:
    """Every mode with its options and their defaults; of one that cannot be used, why."""
    table = Table(box=box.SIMPLE_HEAVY, pad_edge=False)
    for title in ("mode", "what it is", "options"):
        table.add_column(title, overflow="fold")
    for name in MODES:
        try:
            mode = MODES[name]
        except ConfigurationError as error:
            table.add_row(name, f"[red]{escape(str(error))}[/]", "")
            continue
        options = ", ".join(f"{key}={option.default}" for key, option in mode.options.items())
        table.add_row(name, mode.title, escape(options))
    return table


def metrics_text(job: CompareJob) -> str:
    """The metrics that the models of an app are evaluated by, found out by importing it."""
    facts = find_facts(plan(job)[0])
    if facts.metrics:
        meanings = {name: f"  {facts.definitions[name]}" for name in facts.definitions}
        return "\n".join(f"{name}:{better}{meanings.get(name, '')}" for name, better in facts.metrics.items())
    return f"{job.app.name} evaluates its models itself, and reports its metrics with its first round: {facts.refusal}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
