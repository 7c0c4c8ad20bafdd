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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from fedcore.data.questions import Question, question_body
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.reports.options import QuestionAndReport, StatsOptions, columns_question, words_of
from fedcore.data.reports.report import ColumnsReport
from fedcore.data.statistics import BINS, PREFIX, STEP_KEY, StatisticsQuery
from fedcore.data.survival.question import CountStep, SurvivalQuery
from fedcore.data.tables import TableSchema
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp
from fedcore.trees.limits import FINE_BINS, MESSAGE_TYPE, TEST_TYPE

STATISTICS_TYPE: Final = "query.statistics"
STEP_TYPE: Final = "query.regression"
"""Of regressions, and of all else that is asked in steps."""
_PARTS: Final = 10
"""Queries for each step of a Cox regression, which may be more than a plan allows for if times and terms are many."""
_REPEATS: Final = 10
"""Queries of a run that may be repeated, since an exchange failed."""
_FLAGS: Final = ("columns", "table-one", "trees")
_TEXTS: Final = ("by", "crosstab", "correlations", "glm", "survival")
_KINDS: Final = (*_FLAGS, *_TEXTS)
_KEYS: Final = ("name", *_KINDS, "family", "site-effects", "groups", "queries", "runs")
_OWNERS: Final = {"queries": "trees", "family": "glm", "site-effects": "glm", "groups": "survival"}
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
        if self.grows and message_type in (MESSAGE_TYPE, TEST_TYPE):
            return True
        if isinstance(self.question, StatisticsQuery):
            return message_type == STATISTICS_TYPE and _is_part(config, self.question)
        return message_type == STEP_TYPE and _is_step(config, self.question)


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
        schema = app.table_schema()
        questions = tuple(_planned(table, app, schema, path) for table in tables)
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


def _planned(table: Mapping[str, Any], app: FlowerApp, schema: TableSchema | None, path: Path) -> PlannedQuestion:
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
    if value is not True if kind in _FLAGS else not (isinstance(value, str) and value):
        raise ConfigurationError(f"{where}: {kind} is {'true' if kind in _FLAGS else 'a text'}, not {value!r}")
    for key, owner in _OWNERS.items():
        if key in table and kind != owner:
            raise ConfigurationError(f"{where}: {key} is for a question with {owner}", check="other-key")
    grows = kind == "trees"
    try:
        question, report = _question(kind, value, table, app.statistics, schema)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}", check=error.check) from None
    more = table.get("groups", "")
    if isinstance(question, RegressionQuery):
        more = f"{question.family}{_SITES[question.sites]}"
    return PlannedQuestion(
        name=name,
        text=_WORDS[kind] if kind in _FLAGS else f"{_WORDS[kind]} {value}{f' ({more})' if more else ''}",
        question=question,
        queries=_count(table, "queries", None, where) if grows else _most_queries(question) + _REPEATS,
        runs=_count(table, "runs", 1, where),
        report=report,
        grows=grows,
    )


_WORDS: Final[Mapping[str, str]] = {
    "columns": "statistics of all columns",
    "table-one": "table one",
    "trees": "boosted trees",
    "by": "table one by",
    "crosstab": "contingency table of",
    "correlations": "correlations of",
    "glm": "regression",
    "survival": "survival curves of",
}


_SITES: Final[Mapping[str, str]] = {
    "": "",
    "fixed": ", an intercept of each site",
    "random": ", random intercepts of sites, which tell the server how many rows each site has, and their means",
}


def _question(
    kind: str, value: Any, table: Mapping[str, Any], statistics: Mapping[str, Any], schema: TableSchema | None
) -> QuestionAndReport:
    """As `fedcore stats` asks it with the same options."""
    options = StatsOptions(
        family=str(table.get("family", "")),
        site_effects=str(table.get("site-effects", "")),
        by=str(table.get("groups", "")),
    )
    if kind == "trees":
        options = replace(options, bins=FINE_BINS)
    elif kind in ("crosstab", "correlations"):
        changes: dict[str, Any] = {kind: words_of(value, f"{kind} =")}
        options = replace(options, **changes)
    elif kind != "columns":
        options = replace(options, **{kind.replace("-", "_"): value})
    question, report = columns_question(options, statistics, schema)
    if isinstance(question, StatisticsQuery) and not question.names:
        raise ConfigurationError("a plan's columns have bounds by name, in the app's schema or its bounds")
    return question, report


def _count(table: Mapping[str, Any], key: str, default: int | None, where: str) -> int:
    number = table.get(key, default)
    if type(number) is not int or number < 1:
        raise ConfigurationError(f"{where}: {key} is a whole number from 1 on, not {number!r}")
    return number


def _most_queries(question: Question) -> int:
    if isinstance(question, StatisticsQuery):
        return len(question.names)  # as many columns as have room go into one query, and one column at least
    if isinstance(question, SurvivalQuery):
        return len(CountStep.all_of(question.times))
    from fedcore.data.regression.newton import MOST_QUERIES

    is_cox = isinstance(question, RegressionQuery) and question.survival is not None and not question.sites
    return MOST_QUERIES * (_PARTS if is_cox else 1)


def _is_step(config: Mapping[str, Any], question: Question) -> bool:
    """Whether a message asks for a step of this question, which holds it, or for the counts of its times."""
    body = question_body(question)["times"] if isinstance(question, SurvivalQuery) else question_body(question)
    try:
        step = json.loads(str(config.get(STEP_KEY, "")))
        step = step.get("step", step)  # sums over risk sets are of a step, and counts of times of a design or alone
        design = step.get("design")
        if design and design["survival"] != step["times"]:
            return False
        of = step.get("query") or design or step.get("times") or step
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(of == json.loads(json.dumps(body)))


def _is_part(config: Mapping[str, Any], question: StatisticsQuery) -> bool:
    """Whether a message asks for some of a question's columns, within its bounds and in no finer cells."""
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
