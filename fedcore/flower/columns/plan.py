"""A study plan: which questions about its columns an app may ask, agreed before the first one.

plan.toml stands in the app's folder and is part of the app's hash, so an owner who installs the app agrees to it. The
client then answers the queries of these questions alone, each in as many runs as the plan says; training and testing
are no queries.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from fedcore.data.questions import Question
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.regression.resolve import regression_query
from fedcore.data.reports.regression_report import RegressionReport
from fedcore.data.reports.report import ColumnsReport
from fedcore.data.reports.statistics_report import StatisticsReport, bins_from, bounds_from, quantiles_from
from fedcore.data.reports.survival_report import SurvivalReport
from fedcore.data.reports.table_one import TableOne, TableOneQuestion
from fedcore.data.statistics import BINS, PREFIX, StatisticsQuery
from fedcore.data.survival.question import CountStep, SurvivalQuery
from fedcore.data.survival.resolve import survival_query
from fedcore.data.tables import TableSchema
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp

STATISTICS_TYPE: Final = "query.statistics"
REGRESSION_TYPE: Final = "query.regression"
TREES_TYPES: Final = ("query.tree_sums", "query.tree_test")
STEP: Final = f"{PREFIX}regression"
"""The key of a regression's step in a message."""
TREES_BINS: Final = 1_000
"""Cells of the histograms with which `trees_server` begins."""
_PARTS: Final = 10
"""Queries for each step of a Cox regression, which may be more than a plan allows for if times and terms are many."""
_REPEATS: Final = 10
"""Queries of a run that may be repeated, since an exchange failed."""
_KINDS: Final = ("columns", "table-one", "by", "glm", "survival", "trees")
_KEYS: Final = ("name", *_KINDS, "family", "groups", "queries", "runs")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedQuestion:
    """A question of the plan.

    name: of its own among the questions of the plan.
    text: what is asked, as the plan says it.
    question: of the columns; for boosted trees the histograms that they begin with.
    grows: whether it covers the queries of trees, too.
    queries: most sums that it takes in a run.
    runs: in how many runs it may be asked.
    report: makes what is shown of the answer.
    """

    name: str
    text: str
    question: Question
    queries: int
    runs: int
    report: Callable[[Any], ColumnsReport]
    grows: bool = False

    def covers(self, message_type: str, config: Mapping[str, Any]) -> bool:
        """Whether a query of this type and message belongs to it."""
        if isinstance(self.question, RegressionQuery | SurvivalQuery):
            return message_type == REGRESSION_TYPE and _step_query(config) == json.dumps(_plain(self.question))
        if self.grows and message_type in TREES_TYPES:
            return True
        if not isinstance(self.question, StatisticsQuery):
            return False
        return message_type == STATISTICS_TYPE and _is_part(config, self.question)


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """All questions of a plan."""

    questions: tuple[PlannedQuestion, ...]

    @classmethod
    def of(cls, app: FlowerApp) -> Self | None:
        """That of an app, None if it has none; raises ConfigurationError."""
        if not app.plan:
            return None
        path = app.folder / app.plan
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigurationError(f"the plan {path} does not exist", check="no-plan") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} cannot be read as TOML: {error}") from None
        for key in document:
            if key != "question":
                raise UnknownKey(key, ("question",), str(path))
        tables = document.get("question", [])
        if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
            raise ConfigurationError(f"{path} needs one table [[question]] or more", check="no-questions")
        questions = tuple(_planned(table, app, path) for table in tables)
        names = [one.name for one in questions]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"{path} has two questions of one name", check="same-name")
        return cls(questions)

    def find(self, message_type: str, config: Mapping[str, Any]) -> Iterator[PlannedQuestion]:
        """The questions that a query may belong to."""
        return (one for one in self.questions if one.covers(message_type, config))

    @property
    def queries(self) -> int:
        """Most sums of queries, of all its runs together."""
        return sum(one.queries * one.runs for one in self.questions)


def _planned(table: Mapping[str, Any], app: FlowerApp, path: Path) -> PlannedQuestion:
    for key in table:
        if key not in _KEYS:
            raise UnknownKey(key, _KEYS, f"[[question]] of {path}")
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"each [[question]] of {path} needs a name of small letters, digits and hyphens, as in table-one, since "
            f"files are called so; it cannot be {name!r}",
            check="question-name",
        )
    where = f"the question {name!r} of {path}"
    kinds = [kind for kind in _KINDS if kind in table]
    if len(kinds) != 1:
        raise ConfigurationError(f"{where} asks one of {', '.join(_KINDS)}; give one of these", check="one-kind")
    kind, value = kinds[0], table[kinds[0]]
    wanted: type = bool if kind in ("columns", "table-one", "trees") else str
    if type(value) is not wanted or value in (False, ""):
        raise ConfigurationError(f"{where}: {kind} is {'true' if wanted is bool else 'a text'}, not {value!r}")
    runs = _count(table, "runs", 1, where)
    for key, owner in (("queries", "trees"), ("family", "glm"), ("groups", "survival")):
        if key in table and kind != owner:
            raise ConfigurationError(f"{where}: {key} is for questions with {owner}")
    question, text, report = _question(kind, value, str(table.get("family", table.get("groups", ""))), app)
    grows = kind == "trees"
    queries = _count(table, "queries", None, where) if grows else _most_queries(question) + _REPEATS
    return PlannedQuestion(
        name=name, text=text, question=question, queries=queries, runs=runs, report=report, grows=grows
    )


def _question(kind: str, value: Any, more: str, app: FlowerApp) -> tuple[Question, str, Callable[[Any], ColumnsReport]]:
    """What one kind of question asks, in words too, and what makes its report.

    more: the family of a regression, or the column whose values have survival curves.
    """
    schema = TableSchema.load(app.folder / app.schema) if app.schema else None
    bounds = bounds_from([], app.statistics) if app.statistics.get("bounds") else None
    if kind == "glm":
        query = regression_query(value, family=more, bounds=bounds, schema=schema)
        return query, f"{query.family} regression {value}", RegressionReport
    if kind == "survival":
        curves = survival_query(value, by=more, bounds=bounds, schema=schema)
        return curves, f"survival curves of {value}{f' by {more}' if more else ''}", SurvivalReport
    bins = bins_from(None, app.statistics)
    if kind in ("columns", "trees"):
        within = bounds_from([], app.statistics)
        if not isinstance(within, Mapping):
            raise ConfigurationError("a plan's columns have bounds by name, in the app's schema or its bounds")
        report = partial(StatisticsReport, quantiles=quantiles_from("", app.statistics))
        text = "boosted trees" if kind == "trees" else "statistics of all columns"
        return StatisticsQuery.of(within, bins=TREES_BINS if kind == "trees" else bins), text, report
    if schema is None:
        raise ConfigurationError("a plan's table one needs the schema of the app's table", check="no-schema")
    by = "" if kind == "table-one" else value
    asked = TableOneQuestion(schema=schema, by=by)
    text = f"table one by {by}" if by else "table one"
    return StatisticsQuery.of(asked.bounds(), bins=bins, all_rows=True), text, partial(TableOne.of, asked)


def _count(table: Mapping[str, Any], key: str, default: int | None, where: str) -> int:
    number = table.get(key, default)
    if type(number) is not int or number < 1:
        raise ConfigurationError(f"{where}: {key} is a whole number from 1 on, not {number!r}")
    return number


def _most_queries(question: Question) -> int:
    if isinstance(question, SurvivalQuery):
        return len(CountStep.all_of(question.times))
    if isinstance(question, RegressionQuery):
        from fedcore.data.regression.newton import MOST_QUERIES

        return MOST_QUERIES * (_PARTS if question.survival is not None and not question.sites else 1)
    return len(question.names)  # as many columns as have room go into one query, and one column at least


def _plain(query: RegressionQuery | SurvivalQuery) -> Any:
    from fedcore.data.questions import question_to_plain

    plain = question_to_plain(query)
    return plain["regression"] if isinstance(query, RegressionQuery) else plain["survival"]["times"]


def _step_query(config: Mapping[str, Any]) -> str:
    """The regression that a step belongs to, or the times of survival curves, as text; "" if there are none."""
    try:
        step = json.loads(str(config.get(STEP, "")))
        step = step.get("step", step)  # sums over risk sets are of a step, and counts of times of a design or alone
        design = step.get("design")
        if design and design["survival"] != step["times"]:
            return ""
        return json.dumps(step.get("query") or design or step["times"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _is_part(config: Mapping[str, Any], question: StatisticsQuery) -> bool:
    """Whether a message asks for some of a question's columns, as the question does."""
    values = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
    names = values.get("names")
    if not isinstance(names, list) or not names or not set(names) <= set(question.names):
        return False
    part, bins = question.only(names, releases=1), values.get("bins")
    return (
        values.get("low") == list(part.low)
        and values.get("high") == list(part.high)
        and isinstance(bins, int)
        and bins <= max(part.bins, BINS)  # which apps ask for that scale their columns
        and (part.all_rows or not values.get("all_rows", False))
    )
