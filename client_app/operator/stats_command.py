"""The command `fedcore stats`: statistics of a federation's columns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from fedcore.cli.main import AppFolder, DataFolder, RunConfig, Settings
from fedcore.errors import ConfigurationError
from fedcore.system.files import check_replaceable

Clients = Annotated[int, typer.Option(min=0, help="Ask this many simulated clients in memory, and no server.")]
Server = Annotated[str, typer.Option(help="URL of the server; by default the one in the operator's kit.")]
Operator = Annotated[
    Path, typer.Option(envvar="FEDCORE_OPERATOR", help="The operator's kit: token, CA and the server's address.")
]
OPERATOR: Final = Path("federation/operator")
ConnectSeconds = Annotated[float, typer.Option(help="How long to try to reach the server.")]
CONNECT_SECONDS: Final = 30.0


def check_clients(clients: int, server: str, data_dir: Path | None) -> None:
    """Refuse simulated clients of a server, and let them find their data; raises ConfigurationError."""
    if clients and server:
        raise ConfigurationError("--clients asks simulated clients in memory, --server a federation; give one of them")
    if data_dir is not None and clients:
        os.environ["FEDCORE_DATA"] = str(data_dir.absolute())


def stats(
    app: AppFolder,
    clients: Clients = 0,
    server: Server = "",
    operator: Operator = OPERATOR,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'NAME=LOW:HIGH ...'",
            help="Lowest and highest value of each column, or LOW:HIGH for all; repeatable. By default those in "
            "\\[tool.fedcore.statistics] of the app. A value outside counts as the nearest bound.",
        ),
    ] = None,
    glm: Annotated[
        str,
        typer.Option(
            metavar="'TARGET ~ TERMS'",
            help="Estimate a regression in place of statistics, as in 'readmitted ~ age + C(sex) + age:bmi', or a Cox "
            "regression: 'Surv(days, died) ~ age + strata(sex)'. Bounds then only scale a column, but the upper one of "
            "the times ends their grid.",
        ),
    ] = "",
    family: Annotated[
        str,
        typer.Option(
            metavar="linear|logistic|poisson",
            help="Of --glm.  \\[default: what the target is in the schema of the app's table]",
        ),
    ] = "",
    site_effects: Annotated[
        str,
        typer.Option(
            metavar="fixed|random",
            help="Of --glm: an intercept of each site, or a baseline hazard, which the site tells nobody (fixed), or "
            "intercepts from a normal distribution, whose variance is estimated (random).",
        ),
    ] = "",
    survival: Annotated[
        str,
        typer.Option(
            metavar="'TIME EVENT'",
            help="Estimate survival curves in place of statistics, of a column of times and one of events (1, or 0 for "
            "a censored row). The upper bound of the times ends their grid.",
        ),
    ] = "",
    bins: Annotated[
        int | None,
        typer.Option(
            help="Cells of each histogram, of equal width, or of the grid of times.  \\[default: 64; of times those on "
            "which whole numbers lie]"
        ),
    ] = None,
    quantiles: Annotated[str, typer.Option(help="Quantiles, separated by commas.  \\[default: 0.25,0.5,0.75]")] = "",
    table_one: Annotated[
        bool, typer.Option("--table-one", help="Make a table one of all columns of the app's schema, over all rows.")
    ] = False,
    by: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="The same with a column for each value of this one, and tests; or a survival curve for each.",
        ),
    ] = "",
    crosstab: Annotated[
        str,
        typer.Option(
            metavar="'COLUMN COLUMN'",
            help="Count the rows of each pair of values of two categories of the app's schema, with chi-squared test.",
        ),
    ] = "",
    correlations: Annotated[
        str,
        typer.Option(
            metavar="'COLUMN ...'|all",
            help="Pearson's correlations of these numbers, or of all numbers of the app's schema.",
        ),
    ] = "",
    dp_epsilon: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Differential privacy of each record (one row of one client) in this command's whole answer: each "
            "client adds enough noise to its own sums, even if all others collude. A further command about the "
            "same rows costs its epsilon again; fedcore does not add them up. Not protected: which clients answer, and "
            "the names of the columns. 0 for no noise.",
        ),
    ] = 0.0,
    dp_delta: Annotated[
        float | None, typer.Option(help="Delta at which epsilon holds, best below 1 / rows.  \\[default: 1e-05]")
    ] = None,
    run_config: RunConfig = None,
    set_: Settings = None,
    data_dir: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(help="Save the answer here, as .csv, .tex, .json, or a picture: .svg, .png, .pdf.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    connect_seconds: ConnectSeconds = CONNECT_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, with the histograms.")] = False,
) -> None:
    """Ask a federation for statistics of its columns, a table one, a contingency table, correlations, a regression, or
    survival curves.

    Example: fedcore stats my_app --bounds 'age=0:120 dose=0:5' --operator fed/operator

    Example: fedcore stats my_app --by sex --operator fed/operator --out table.tex

    Example: fedcore stats my_app --crosstab 'stage sex' --operator fed/operator --out table.svg

    Example: fedcore stats my_app --correlations 'age dose' --operator fed/operator

    Example: fedcore stats my_app --glm 'readmitted ~ age + C(sex)' --operator fed/operator

    Example: fedcore stats my_app --glm 'Surv(days, died) ~ age + C(sex)' --operator fed/operator

    Example: fedcore stats my_app --survival 'days died' --by sex --operator fed/operator --out curves.svg

    The server learns sums over the clients, not the values of one. The ClientApp has to answer the queries: apps made
    with supervised_app do, others need add_statistics (fedcore.flower.apps.statistics). With --clients 4 the command
    asks simulated clients in memory.
    """
    _check_out(out, force=force)
    check_clients(clients, server, data_dir)
    from client_app.operator import stats as operation
    from fedcore.data.reports.options import StatsOptions, words_of
    from fedcore.flower.app import FlowerApp

    options = StatsOptions(
        table_one=table_one,
        by=by,
        crosstab=words_of(crosstab, "--crosstab"),
        correlations=words_of(correlations, "--correlations"),
        glm=glm,
        family=family,
        site_effects=site_effects,
        survival=survival,
        bounds=tuple(bounds or ()),
        bins=bins,
        quantiles=quantiles,
        dp_epsilon=dp_epsilon,
        dp_delta=dp_delta,
    )
    request = operation.request_of(FlowerApp.load(app), options)
    answer = operation.ask(
        request, clients, operator,
        server=server, connect_seconds=connect_seconds, run_config=run_config or [], settings=set_ or [],
    )  # fmt: skip
    operation.show(request.report(answer), out=out, in_json=as_json)


def _check_out(out: Path | None, *, force: bool) -> None:
    """Refuse a path before any client is asked."""
    if out is None:
        return
    from fedcore.data.reports.report import REPORT_ENDINGS

    if out.suffix not in REPORT_ENDINGS:
        raise ConfigurationError(f"--out: the name of {out} has to end with {', '.join(REPORT_ENDINGS)}")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigurationError(f"--out: no file can be made at {out}")
    check_replaceable(out, force=force)
