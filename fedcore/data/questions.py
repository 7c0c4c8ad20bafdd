"""Questions about columns and their answers as plain JSON: statistics, regressions, correlations, survival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter

from fedcore.data.correlation.matrix import Correlations
from fedcore.data.correlation.question import CorrelationQuery
from fedcore.data.regression.newton import Regression
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.statistics import Statistics, StatisticsQuery
from fedcore.data.survival.curves import Survival
from fedcore.data.survival.question import SurvivalQuery
from fedcore.errors import ConfigurationError, PeerError
from fedcore.system.plain_json import from_plain, to_plain

Question: TypeAlias = StatisticsQuery | RegressionQuery | CorrelationQuery | SurvivalQuery
Answer: TypeAlias = Statistics | Regression | Correlations | Survival


@dataclass(frozen=True, slots=True)
class _Kind:
    """Kind of question. name: the key under which it stands; "" for statistics, which stand alone."""

    name: str
    question: TypeAdapter[Any]
    answer: TypeAdapter[Any]


_KINDS: Final[dict[type[Any], _Kind]] = {
    StatisticsQuery: _Kind("", TypeAdapter(StatisticsQuery), TypeAdapter(Statistics)),
    RegressionQuery: _Kind("regression", TypeAdapter(RegressionQuery), TypeAdapter(Regression)),
    CorrelationQuery: _Kind("correlations", TypeAdapter(CorrelationQuery), TypeAdapter(Correlations)),
    SurvivalQuery: _Kind("survival", TypeAdapter(SurvivalQuery), TypeAdapter(Survival)),
}
_BEFORE: Final = {"names": [], "low": [-1.0], "high": [1.0]}
"""What 0.2.0 needs of a question, so that its refusal names the key that it does not know."""


def question_body(question: Question) -> dict[str, Any]:
    """All that a question says, as an object for `json.dumps`, without its kind."""
    plain: dict[str, Any] = to_plain(_KINDS[type(question)].question, question)
    return plain


def question_to_plain(question: Question) -> dict[str, Any]:
    """As an object for `json.dumps`."""
    kind, plain = _KINDS[type(question)], question_body(question)
    if kind.name:
        return {**_BEFORE, kind.name: plain}
    if not plain["all_rows"]:
        del plain["all_rows"]  # which 0.2.0 does not know
    return plain


def question_from_plain(data: object) -> Question:
    """The inverse; raises ConfigurationError for what is no question."""
    kinds = [kind for kind in _KINDS.values() if isinstance(data, dict) and kind.name in data]
    for kind in kinds:
        if data.keys() != {*_BEFORE, kind.name}:  # type: ignore[attr-defined]
            raise ConfigurationError(f"the question asks for a {kind.name} and for something else")
    kind = kinds[0] if kinds else _KINDS[StatisticsQuery]
    inner = data[kind.name] if kinds else data  # type: ignore[index]
    what = f"the question for {f'a {kind.name}' if kinds else 'statistics'}"
    question: Question = from_plain(kind.question, inner, what=what, error=ConfigurationError)
    return question


def coarse(answer: Answer) -> Answer:
    """An answer without numbers of few rows, of which the other kinds give none."""
    return answer.coarse() if isinstance(answer, Statistics) else answer


def answer_to_plain(question: Question, answer: Answer) -> Any:
    """The answer to a question, as an object for `json.dumps`."""
    return to_plain(_KINDS[type(question)].answer, answer)


def answer_from_plain(question: Question, data: object, *, error: type[PeerError]) -> Answer:
    """The inverse; raises `error` for what is no answer to this question."""
    answer: Answer = from_plain(_KINDS[type(question)].answer, data, what="the server's answer", error=error)  # type: ignore[arg-type]
    return answer
