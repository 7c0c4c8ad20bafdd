"""Of what all modes of a comparison have equally much: examples, steps, seconds, or as much as a target takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, Self

from fedcore.comparison.judging import MetricChoice
from fedcore.comparison.target import Target
from fedcore.errors import ConfigurationError

_SHAPE: Final = "--budget is examples, steps, seconds, seconds:N, or target:METRIC:VALUE, as in target:accuracy:0.9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What `--budget` says.

    kind: "" for equal examples, with the models at equal steps next to them.
    seconds: of training, the same for all modes; None for the least that any of them takes.
    target: how good a model has to be.
    text: as it was written.
    """

    kind: Literal["", "examples", "steps", "seconds", "target"] = ""
    seconds: float | None = None
    target: Target | None = None
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what stands after `--budget`; raises ConfigurationError."""
        word, colon, rest = text.partition(":")
        match word:
            case "" | "examples" | "steps" if not colon:
                return cls(kind=word, text=text)
            case "seconds":
                return cls(kind="seconds", seconds=_positive(rest, text) if colon else None, text=text)
            case "target" if rest:
                return cls(kind="target", target=Target.parse(rest), text=text)
        raise ConfigurationError(f"{_SHAPE}, not {text!r}", check="budget-form")

    @property
    def metric(self) -> MetricChoice | None:
        """What models are judged by if nothing else is named: the metric of the target."""
        return None if self.target is None else MetricChoice(name=self.target.metric, better=self.target.better)

    @property
    def changes_runs(self) -> bool:
        """Whether runs are longer for its sake; all others are read off the curves."""
        return self.kind == "steps"


def _positive(rest: str, text: str) -> float:
    try:
        value = float(rest)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigurationError(f"{_SHAPE}, not {text!r}", check="budget-form")
    return value
