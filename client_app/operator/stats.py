"""Questions about a federation's columns: the request, over a server or in memory, and the output."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from client_app.operator.client import OperatorClient
from client_app.operator.run_submission import make_submission
from fedcore.data.questions import Answer, Question, answer_from_plain, coarse, question_to_plain
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.reports.options import StatsOptions, columns_question
from fedcore.data.reports.report import ColumnsReport, json_text, save_report
from fedcore.errors import ConfigurationError, PeerError, Refused, RunFailed, ServerUnreachable
from fedcore.federation import OperatorKit
from fedcore.flower.app import FlowerApp
from fedcore.monitoring.progress import ProgressView
from fedcore.run.settings import JobSettings
from fedcore.system.assignments import override, parse_assignments
from fedcore.system.terminal import visible
from fedcore.wire.events import RunOut, StatisticsFound
from fedcore.wire.operator import RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsRequest:
    """A question about the columns of an app's clients.

    report: makes what is shown of the answer.
    """

    app: FlowerApp
    question: Question
    report: Callable[[Any], ColumnsReport]


def request_of(app: FlowerApp, options: StatsOptions) -> ColumnsRequest:
    """What to ask of the clients of an app; raises ConfigurationError."""
    question, report = columns_question(options, app.statistics, app.table_schema())
    if isinstance(question, RegressionQuery) and question.sites == "random" and not app.plan:
        raise ConfigurationError(
            "random effects of sites tell the server how many rows each site has, and their means, so clients answer "
            'only what the study plan of the app names: write the question with site-effects = "random" into its '
            "plan.toml (docs/howto/statistics.md), before the owners approve the app",
            check="no-plan",
        )
    return ColumnsRequest(app=app, question=question, report=report)


def ask(
    request: ColumnsRequest,
    clients: int,
    operator: Path,
    *,
    server: str,
    connect_seconds: float,
    run_config: Sequence[str],
    settings: Sequence[str],
) -> Answer:
    """Ask simulated clients, or the federation of a kit if `clients` is 0; options as they are typed."""
    words: dict[str, Any] = {"run_config": parse_assignments(run_config), "settings": parse_assignments(settings)}
    if clients:
        return ask_in_memory(request, clients, **words)
    return ask_federation(request, operator, server=server, connect_seconds=connect_seconds, **words)


def ask_in_memory(
    request: ColumnsRequest, clients: int, *, run_config: dict[str, Any], settings: dict[str, Any]
) -> Answer:
    """Ask simulated clients."""
    from fedcore.flower.serverside import run_question
    from fedcore.simulation import Simulation

    flower = request.app
    job = JobSettings.from_mapping({**flower.settings.to_mapping(), **settings}, where="--set")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with contextlib.redirect_stdout(sys.stderr), _progress("simulated") as view:
        simulation = Simulation(
            app=flower,
            clients=clients,
            run_config=override(flower.run_config, run_config, "the run config"),
            settings=job,
            emit=view.show,
        )
        with simulation.open() as backend:
            return coarse(
                run_question(request.question, backend=backend, run="simulation", aggregation=job.aggregation)
            )


def ask_federation(
    request: ColumnsRequest,
    operator: Path,
    *,
    server: str,
    connect_seconds: float,
    run_config: dict[str, Any],
    settings: dict[str, Any],
) -> Answer:
    """Submit a run that only asks this, and follow it; Ctrl-C cancels it. Raises FedcoreError."""
    kit = OperatorKit.load(operator)
    if server:
        kit = replace(kit, servers=(server.rstrip("/"),))
    submission = make_submission(request.app.folder, run_config, settings)
    submission = submission.model_copy(update={"statistics": question_to_plain(request.question)})
    with OperatorClient(kit, connect_seconds=connect_seconds) as client:
        run = client.submit(submission).run
        try:
            final, event = _follow(client, run)
        except KeyboardInterrupt:
            with contextlib.suppress(ServerUnreachable, Refused):
                client.cancel(run)
            raise
    if final.status is not RunStatus.FINISHED:
        raise RunFailed(f"run {final.run} {final.status}: {final.reason or 'no reason given'}")
    if event is None:
        raise PeerError(f"the server ended run {final.run} without statistics; does it run this version of fedcore?")
    return answer_from_plain(request.question, event.statistics, error=PeerError)


def _follow(client: OperatorClient, run: str) -> tuple[RunOut, StatisticsFound | None]:
    event = None
    with _progress("federated") as view:
        for state in client.follow(run):
            for recorded in state.events:
                view.show(recorded.event)
                if isinstance(recorded.event, StatisticsFound):
                    event = recorded.event
    return state, event


def _progress(label: str) -> ProgressView:
    return ProgressView(Console(stderr=True), label, only_queries=True)


def show(report: ColumnsReport, *, out: Path | None, in_json: bool) -> None:
    """Print an answer, and save it if `out` is given, as its ending says."""
    if out is not None:
        save_report(report, out)
    if in_json:
        sys.stdout.write(json_text(report))
        return
    lines = [[visible(cell) for cell in line] for line in report.lines()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *rest in lines:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        typer.echo("  ".join(cells).rstrip())
    for note in [*report.notes(), *([f"saved to {out}"] if out is not None else [])]:
        typer.echo(visible(note))
