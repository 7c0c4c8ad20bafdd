"""Statistics and regressions of a federation: the request, over a server or in memory, and the output."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import typer
from pydantic import TypeAdapter
from rich.console import Console

from client_app.operator.client import OperatorClient
from client_app.operator.run_submission import make_submission
from fedcore.data.regression.newton import Regression
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.regression.report import regression_csv, regression_json, regression_lines, regression_notes
from fedcore.data.regression.resolve import regression_query
from fedcore.data.regression.wire import REGRESSION, Question, question_to_plain
from fedcore.data.reports import table_one
from fedcore.data.reports.statistics_report import (
    STATISTICS,
    as_csv,
    as_json,
    as_text,
    bins_from,
    bounds_from,
    headings,
    quantiles_from,
    rows,
)
from fedcore.data.statistics import LEAST_IN_CELL, Statistics, StatisticsQuery
from fedcore.data.tables import TableSchema
from fedcore.errors import ConfigurationError, PeerError, Refused, RunFailed, ServerUnreachable
from fedcore.federation import OperatorKit
from fedcore.flower.app import FlowerApp
from fedcore.monitoring.progress import ProgressView
from fedcore.run.settings import JobSettings
from fedcore.system.assignments import override, parse_assignments
from fedcore.system.plain_json import from_plain
from fedcore.system.terminal import visible
from fedcore.wire.events import RunOut, StatisticsFound
from fedcore.wire.operator import RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsRequest:
    """A request for statistics or a regression; `folder` is the app's.

    table: the table one that is made of the answer; None for a row for each column.
    """

    folder: Path
    question: Question
    run_config: dict[str, Any]
    settings: dict[str, Any]
    quantiles: tuple[float, ...] = ()
    table: table_one.TableOneQuestion | None = None

    @classmethod
    def of(
        cls,
        folder: Path,
        *,
        run_config: Sequence[str],
        settings: Sequence[str],
        bounds: Sequence[str],
        bins: int | None,
        quantiles: str,
        epsilon: float,
        delta: float,
        by: str | None = None,
    ) -> Self:
        """From the command's options and the app's own table; raises ConfigurationError.

        by: the column whose values are the groups of a table one, "" for one of all rows; None for no table one.
        """
        app = FlowerApp.load(folder)
        table = app.statistics
        question = None if by is None else _table_question(app, by)
        within = bounds_from(bounds, table) if question is None else question.bounds()
        cells = bins_from(bins, table)
        return cls(
            folder=folder,
            table=question,
            question=StatisticsQuery.of(
                within, bins=cells, epsilon=epsilon, delta=delta, all_rows=question is not None
            ),
            quantiles=quantiles_from(quantiles, table),
            run_config=parse_assignments(run_config),
            settings=parse_assignments(settings),
        )

    @classmethod
    def regression(
        cls,
        folder: Path,
        *,
        run_config: Sequence[str],
        settings: Sequence[str],
        bounds: Sequence[str],
        formula: str,
        family: str,
    ) -> Self:
        """The same for a regression."""
        app = FlowerApp.load(folder)
        schema = TableSchema.load(folder / app.schema) if app.schema else None
        within = bounds_from(bounds, app.statistics) if bounds or app.statistics.get("bounds") else None
        return cls(
            folder=folder,
            question=regression_query(formula, family=family, bounds=within, schema=schema),
            run_config=parse_assignments(run_config),
            settings=parse_assignments(settings),
        )


def _table_question(app: FlowerApp, by: str) -> table_one.TableOneQuestion:
    """Raises ConfigurationError for an app without a table's schema, or a column that makes no groups."""
    if not app.schema:
        raise ConfigurationError(
            "a table one needs to know which columns are categories: the app's pyproject.toml has to name a schema, "
            '[tool.fedcore.statistics] schema = "schema.toml", as apps of fedcore new --csv do',
            check="no-schema",
        )
    return table_one.TableOneQuestion(schema=TableSchema.load(app.folder / app.schema), by=by)


def ask_in_memory(request: StatisticsRequest, clients: int) -> Statistics | Regression:
    """Ask simulated clients."""
    from fedcore.flower.serverside import run_regression, run_statistics
    from fedcore.simulation import Simulation

    flower = FlowerApp.load(request.folder)
    settings = JobSettings.from_mapping({**flower.settings.to_mapping(), **request.settings}, where="--set")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with contextlib.redirect_stdout(sys.stderr), ProgressView(Console(stderr=True), "simulated") as view:
        simulation = Simulation(
            app=flower,
            clients=clients,
            run_config=override(flower.run_config, request.run_config, "the run config"),
            settings=settings,
            emit=view.show,
        )
        with simulation.open() as backend:
            question, mode = request.question, settings.aggregation
            if isinstance(question, RegressionQuery):
                return run_regression(question, backend=backend, run="simulation", aggregation=mode)
            return run_statistics(question, backend=backend, run="simulation", aggregation=mode).coarse()


def ask_federation(
    request: StatisticsRequest, operator: Path, *, server: str, connect_seconds: float
) -> Statistics | Regression:
    """Submit a run that only asks this, and follow it; Ctrl-C cancels it. Raises FedcoreError."""
    kit = OperatorKit.load(operator)
    if server:
        kit = replace(kit, servers=(server.rstrip("/"),))
    submission = make_submission(request.folder, request.run_config, request.settings)
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
    form: TypeAdapter[Any] = REGRESSION if isinstance(request.question, RegressionQuery) else STATISTICS
    answer: Statistics | Regression = from_plain(
        form,
        event.statistics,
        what="the server's answer",
        error=RunFailed,  # type: ignore[arg-type]
    )
    return answer


def _follow(client: OperatorClient, run: str) -> tuple[RunOut, StatisticsFound | None]:
    event = None
    with ProgressView(Console(stderr=True), "federated") as view:
        for state in client.follow(run):
            for recorded in state.events:
                view.show(recorded.event)
                if isinstance(recorded.event, StatisticsFound):
                    event = recorded.event
    return state, event


def show_table(table: table_one.TableOne, *, out: Path | None, in_json: bool) -> None:
    """Print a table one, and save it if `out` is given, as its ending says."""
    document = json.dumps(table_one.as_json(table), indent=2) + "\n"
    if out is not None:
        forms = {".csv": table_one.as_csv, ".tex": table_one.as_latex}
        out.write_text(forms[out.suffix](table) if out.suffix in forms else document, encoding="utf-8")
    if in_json:
        sys.stdout.write(document)
        return
    _print_aligned(table_one.as_rows(table))
    for note in _table_notes(table, out):
        typer.echo(note)


def _table_notes(table: table_one.TableOne, out: Path | None) -> list[str]:
    notes = [_of_clients(table.clients, table.cohort)]
    if len(table.groups) > 1:
        notes.append(
            "p: Welch's t-test of two groups, analysis of variance of more, chi-squared test of counts; SMD: largest "
            "standardised difference of two means"
        )
    notes.append(
        f"- : not shown, since it is of fewer than {LEAST_IN_CELL} rows, or would tell such a number; quartiles are "
        "exact to a cell of the histogram (--bins)"
    )
    return [*notes, f"saved to {out}"] if out is not None else notes


def show(statistics: Statistics, quantiles: Sequence[float], *, out: Path | None, in_json: bool) -> None:
    """Print the statistics, and save them if `out` is given."""
    document = as_json(statistics, quantiles)
    if out is not None:
        text = as_csv(statistics, quantiles) if out.suffix == ".csv" else json.dumps(document, indent=2) + "\n"
        out.write_text(text, encoding="utf-8")
    if in_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    table = ([as_text(value) for value in row] for row in rows(statistics, quantiles))
    _print_aligned([headings(quantiles), *table])
    for note in _notes(statistics, out):
        typer.echo(note)


def show_regression(regression: Regression, *, out: Path | None, in_json: bool) -> None:
    """Print the coefficients, and save them if `out` is given."""
    document = json.dumps(regression_json(regression), indent=2) + "\n"
    if out is not None:
        out.write_text(regression_csv(regression) if out.suffix == ".csv" else document, encoding="utf-8")
    if in_json:
        sys.stdout.write(document)
        return
    _print_aligned(regression_lines(regression))
    for note in regression_notes(regression) + ([f"saved to {out}"] if out is not None else []):
        typer.echo(visible(note))


def _print_aligned(lines: Sequence[Sequence[str]]) -> None:
    lines = [[visible(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *rest in lines:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        typer.echo("  ".join(cells).rstrip())


def _of_clients(clients: int, cohort: int) -> str:
    if clients < cohort:
        return f"of {clients} clients; {cohort} were asked, and the others contributed nothing"
    return f"of {clients} clients"


def _notes(statistics: Statistics, out: Path | None) -> list[str]:
    notes = [_of_clients(statistics.clients, statistics.asked)]
    if statistics.epsilon:
        notes.append(
            f"with noise for every record of a client: epsilon {statistics.epsilon:g} at delta {statistics.delta:g}, "
            "for this answer alone; each further one adds its own"
        )
    elif any(column.below + column.above for column in statistics.columns.values()):
        notes.append("values outside the bounds count as the nearest bound, also in mean and std")
    if not statistics.epsilon:
        notes.append(
            f"cells of the histograms that hold fewer than {LEAST_IN_CELL} values are taken together with those next "
            f"to them; other numbers that small are given as {LEAST_IN_CELL}, and columns of so few values as empty"
        )
    if out is not None:
        notes.append(f"saved to {out}")
    return notes
