"""Which option of `fedcore stats` goes with which question."""

from __future__ import annotations

from typing import Any

import pytest

from fedcore.data import TableColumn, TableSchema
from fedcore.data.reports.options import StatsOptions, columns_question
from fedcore.data.statistics import StatisticsQuery
from fedcore.errors import ConfigurationError
from tests.support.raising import raises

SCHEMA = TableSchema(
    target="sick",
    task="binary",
    classes=("no", "yes"),
    columns=(
        TableColumn(name="age", kind="number", low=0, high=100),
        TableColumn(name="dose", kind="number", low=0, high=10),
        TableColumn(name="sex", kind="category", categories=("f", "m")),
    ),
)
TABLE = {"bounds": SCHEMA.bounds}
QUESTIONS: dict[str, dict[str, Any]] = {
    "statistics": {},
    "table one": {"table_one": True},
    "by": {"by": "sex"},
    "crosstab": {"crosstab": ("sick", "sex")},
    "correlations": {"correlations": ("age", "dose")},
    "glm": {"glm": "sick ~ age"},
    "survival": {"survival": "age sick"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "bounds": {"bounds": ("age=0:120",)},
    "bins": {"bins": 8},
    "quantiles": {"quantiles": "0.5"},
    "noise": {"dp_epsilon": 1.0, "dp_delta": 1e-6},
    "family": {"family": "logistic"},
    "table one": {"table_one": True},
}
TOGETHER = {
    ("statistics", "bounds"), ("statistics", "bins"), ("statistics", "quantiles"), ("statistics", "noise"),
    ("statistics", "table one"), ("table one", "bins"), ("table one", "table one"), ("by", "bins"),
    ("by", "table one"), ("glm", "bounds"), ("correlations", "bounds"), ("glm", "family"),
    ("survival", "bounds"), ("survival", "bins"),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_can_be_asked_alone(question: str) -> None:
    assert columns_question(StatsOptions(**QUESTIONS[question]), TABLE, SCHEMA)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_option_has_an_effect_or_is_refused(question: str, option: str) -> None:
    options = StatsOptions(**{**QUESTIONS[question], **OPTIONS[option]})
    if (question, option) in TOGETHER:
        assert columns_question(options, TABLE, SCHEMA)
        return
    with raises(ConfigurationError, check="two-questions" if option == "table one" else "no-effect"):
        columns_question(options, TABLE, SCHEMA)


def test_one_question_at_a_time() -> None:
    with raises(ConfigurationError, check="two-questions"):
        columns_question(StatsOptions(by="sex", glm="sick ~ age"), TABLE, SCHEMA)


def test_delta_is_of_an_epsilon() -> None:
    with pytest.raises(ConfigurationError, match="--dp-epsilon"):
        columns_question(StatsOptions(dp_delta=1e-6), TABLE, SCHEMA)


@pytest.mark.parametrize("options", [{"by": "sex"}, {"table_one": True}, {"crosstab": ("sick", "sex")}])
def test_tables_need_a_schema(options: dict[str, Any]) -> None:
    with raises(ConfigurationError, check="no-schema"):
        columns_question(StatsOptions(**options), {"bounds": {"age": (0, 1)}})


def test_bounds_by_name_need_no_words() -> None:
    question, _ = columns_question(StatsOptions(bounds={"blood pressure": (0.0, 300.0)}), {})
    assert isinstance(question, StatisticsQuery)
    assert (question.names, question.high) == (("blood pressure",), (300.0,))
