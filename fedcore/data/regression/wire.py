"""Questions about columns as plain JSON: of statistics, or of a regression."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter

from fedcore.data.regression.newton import Regression
from fedcore.data.regression.question import RegressionQuery, RegressionStep
from fedcore.data.statistics import StatisticsQuery
from fedcore.errors import ConfigurationError
from fedcore.system.plain_json import from_plain, to_plain

Question: TypeAlias = StatisticsQuery | RegressionQuery

REGRESSION: Final[TypeAdapter[Regression]] = TypeAdapter(Regression)
STEP: Final[TypeAdapter[RegressionStep]] = TypeAdapter(RegressionStep)
_STATISTICS: Final[TypeAdapter[StatisticsQuery]] = TypeAdapter(StatisticsQuery)
_REGRESSION: Final[TypeAdapter[RegressionQuery]] = TypeAdapter(RegressionQuery)
_KEY: Final = "regression"
_BEFORE: Final = {"names": [], "low": [-1.0], "high": [1.0]}
"""What 0.2.0 needs of a question, so that its refusal names the key that it does not know."""


def question_to_plain(question: Question) -> dict[str, Any]:
    """As an object for `json.dumps`."""
    if isinstance(question, RegressionQuery):
        return {**_BEFORE, _KEY: to_plain(_REGRESSION, question)}
    plain = to_plain(_STATISTICS, question)
    if not question.all_rows:
        del plain["all_rows"]  # which 0.2.0 does not know
    return plain


def question_from_plain(data: object) -> Question:
    """The inverse; raises ConfigurationError for what is no question."""
    what = "the question for statistics"
    if isinstance(data, dict) and _KEY in data:
        if data.keys() != {*_BEFORE, _KEY}:
            raise ConfigurationError(f"{what} asks for a regression and for something else")
        return from_plain(_REGRESSION, data[_KEY], what="the question for a regression", error=ConfigurationError)
    return from_plain(_STATISTICS, data, what=what, error=ConfigurationError)
