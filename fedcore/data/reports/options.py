"""What to ask and how to show the answer, out of the options of `fedcore stats` and `Federation.stats`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, TypeAlias

from fedcore.data.correlation.resolve import correlation_query
from fedcore.data.questions import Question
from fedcore.data.regression.resolve import regression_query
from fedcore.data.reports.correlation_report import CorrelationReport
from fedcore.data.reports.crosstab import Crosstab, CrosstabQuestion
from fedcore.data.reports.regression_report import RegressionReport
from fedcore.data.reports.report import ColumnsReport
from fedcore.data.reports.statistics_report import StatisticsReport, bins_from, bounds_from, quantiles_from
from fedcore.data.reports.survival_report import SurvivalReport
from fedcore.data.reports.table_one import TableOne, TableOneQuestion
from fedcore.data.statistics import StatisticsQuery
from fedcore.data.survival.resolve import survival_query
from fedcore.data.tables import TableSchema
from fedcore.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsOptions:
    """What a person asks for; an option that has its default is not given.

    table_one, by, crosstab, correlations, glm, survival: the questions, one of which may be asked; else a row of
        statistics for each column.
    family, site_effects: of a regression.
    bounds: ("age=0:120", ...), or (low, high) of each column by its name.
    bins: of statistics, or of times.
    quantiles, dp_epsilon, dp_delta: of statistics.
    """

    table_one: bool = False
    by: str = ""
    crosstab: Sequence[str] = ()
    correlations: Sequence[str] = ()
    glm: str = ""
    family: str = ""
    site_effects: str = ""
    survival: str = ""
    bounds: Sequence[str] | Mapping[str, tuple[float, float]] = ()
    bins: int | None = None
    quantiles: str = ""
    dp_epsilon: float = 0.0
    dp_delta: float | None = None


def words_of(text: str, option: str) -> tuple[str, ...]:
    """Names that spaces separate, those that hold one in quotes; raises ConfigurationError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigurationError(f"{option} {text}: {error}; write a name that holds a space in quotes") from None


QuestionAndReport: TypeAlias = tuple[Question, Callable[[Any], ColumnsReport]]
"""A question about columns, and what makes its report out of the answer."""


def columns_question(
    options: StatsOptions, table: Mapping[str, Any], schema: TableSchema | None = None
) -> QuestionAndReport:
    """The question that options stand for; raises ConfigurationError for those that do not go together.

    Args:
        options: that a person gave.
        table: `[tool.fedcore.statistics]` of the app.
        schema: of the app's table; None if the app has none.
    """
    kind = _kind(options)
    return kind.make(options, table, schema)


def _statistics(options: StatsOptions, table: Mapping[str, Any], schema: TableSchema | None) -> QuestionAndReport:
    del schema  # whose bounds are in the app's table
    question = StatisticsQuery.of(
        _bounds(options, table),
        bins=bins_from(options.bins, table),
        epsilon=options.dp_epsilon,
        delta=1e-5 if options.dp_delta is None else options.dp_delta,
    )
    return question, partial(StatisticsReport, quantiles=quantiles_from(options.quantiles, table))


def _table_one(options: StatsOptions, table: Mapping[str, Any], schema: TableSchema | None) -> QuestionAndReport:
    question = TableOneQuestion(schema=_known(schema, "a table one"), by=options.by)
    cells = bins_from(options.bins, table)
    return StatisticsQuery.of(question.bounds(), bins=cells, all_rows=True), partial(TableOne.of, question)


def _crosstab(options: StatsOptions, table: Mapping[str, Any], schema: TableSchema | None) -> QuestionAndReport:
    del table  # the schema has all bounds
    question = CrosstabQuestion.of(_known(schema, "a contingency table"), tuple(options.crosstab))
    return question.query(), partial(Crosstab.of, question)


def _correlations(options: StatsOptions, table: Mapping[str, Any], schema: TableSchema | None) -> QuestionAndReport:
    within = _bounds(options, table) if options.bounds or table.get("bounds") else None
    return correlation_query(options.correlations, bounds=within, schema=schema), CorrelationReport


def _regression(options: StatsOptions, table: Mapping[str, Any], schema: TableSchema | None) -> QuestionAndReport:
    within = _bounds(options, table) if options.bounds or table.get("bounds") else None
    question = regression_query(
        options.glm, family=options.family, bounds=within, schema=schema, bins=options.bins, sites=options.site_effects
    )
    return question, RegressionReport


def _survival(options: StatsOptions, table: Mapping[str, Any], schema: TableSchema | None) -> QuestionAndReport:
    within = _bounds(options, table) if options.bounds or table.get("bounds") else None
    question = survival_query(options.survival, by=options.by, bins=options.bins, bounds=within, schema=schema)
    return question, SurvivalReport


def _bounds(options: StatsOptions, table: Mapping[str, Any]) -> Any:
    if isinstance(options.bounds, Mapping):
        return bounds_from((), {**table, "bounds": options.bounds} if options.bounds else table)
    return bounds_from(options.bounds, table)


def _known(schema: TableSchema | None, what: str) -> TableSchema:
    if schema is None:
        raise ConfigurationError(
            f"{what} needs to know which columns are categories: the app's pyproject.toml has to name a schema, "
            '[tool.fedcore.statistics] schema = "schema.toml", as apps of fedcore new --csv do',
            check="no-schema",
        )
    return schema


# --- which option goes with which question --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Question:
    """Kind of question. options: that have an effect on it, apart from the one that asks it."""

    options: tuple[str, ...]
    make: Callable[[StatsOptions, Mapping[str, Any], TableSchema | None], QuestionAndReport]


_STATISTICS: Final = _Question(("bounds", "bins", "quantiles", "dp_epsilon", "dp_delta"), _statistics)
_KINDS: Final[Mapping[str, _Question]] = {
    "survival": _Question(("by", "bounds", "bins"), _survival),
    "by": _Question(("table_one", "bins"), _table_one),
    "table_one": _Question(("bins",), _table_one),
    "crosstab": _Question((), _crosstab),
    "correlations": _Question(("bounds",), _correlations),
    "glm": _Question(("family", "site_effects", "bounds", "bins"), _regression),
}
"""By the option that asks the question."""


def _kind(options: StatsOptions) -> _Question:
    """What is asked; raises ConfigurationError for options of different questions."""
    chosen = [one.name for one in fields(options) if getattr(options, one.name) != one.default]
    if options.dp_delta is not None and not options.dp_epsilon:
        raise ConfigurationError("--dp-delta has no effect without --dp-epsilon; set both, or neither")
    name = next((name for name in _KINDS if name in chosen), "")
    kind = _KINDS.get(name, _STATISTICS)
    wrong = [one for one in chosen if one != name and one not in kind.options]
    if not wrong:
        return kind
    if others := [one for one in wrong if one in _KINDS]:
        raise ConfigurationError(
            f"{_flag(name)} and {_flag(others[0])} are two questions; ask one after the other", check="two-questions"
        )
    if name:
        others = [f"{_flag(name)} takes {', '.join(map(_flag, kind.options))}"] if kind.options else []
        raise ConfigurationError(
            "; ".join([f"{_flag(wrong[0])} has no effect on {_flag(name)}, leave it out", *others]),
            check="no-effect",
        )
    takers = [one for one, other in _KINDS.items() if wrong[0] in other.options]
    raise ConfigurationError(
        f"{_flag(wrong[0])} has no effect without {' or '.join(map(_flag, takers))}; set both, or neither",
        check="no-effect",
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
