"""Which of a run's models is the best so far, by a metric of its evaluations.

An evaluation belongs to the model that it was asked of: the one that the exchange sent, and not the next one. What is
judged is what the server hears anyway, a mean over the clients, or what the strategy reads off it, such as an AUC; with
differential privacy that mean is noised and paid for like an update, so that choosing by it is post-processing and
costs nothing more (Dwork and Roth 2014, section 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from fedcore.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class BestRule:
    """`best-model = "NAME:max"` or `"NAME:min"`."""

    metric: str
    larger: bool

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for ""; raises ConfigurationError."""
        if not text:
            return None
        metric, _, better = text.rpartition(":")
        if not metric or better not in ("max", "min"):
            raise ConfigurationError(f'best-model is "NAME:max" or "NAME:min", as in "eval_acc:max", not {text!r}')
        return cls(metric, better == "max")

    def value(self, metrics: Mapping[str, Any]) -> float | None:
        """The metric as a number; None if it is absent, a list, or no number."""
        value = metrics.get(self.metric)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def beats(self, value: float | None, best: float | None) -> bool:
        """Whether a model of that value is better than the best one before; of equal ones the first stays."""
        if value is None or best is None:
            return value is not None
        return value > best if self.larger else value < best

    def absent(self, metrics: Mapping[str, Any]) -> str:
        """What to say once where an evaluation does not have the metric."""
        names = ", ".join(name for name, value in sorted(metrics.items()) if isinstance(value, int | float))
        return (
            f"best-model: the evaluation reports no number {self.metric!r}, so that no model is kept as the best; it "
            f"reports {names or 'none'}"
        )

    def describe(self, value: float) -> str:
        """For the model's file."""
        return f"{self.metric} = {value:.6g}, the {'largest' if self.larger else 'smallest'}"


REMOTE: Final[Mapping[str, float]] = {
    "step-seconds": 300.0,
    "liveness-seconds": 120.0,
    "pause-seconds": 600.0,
    "transfer-seconds": 7200.0,
}
"""What sites = "remote" means for settings that nobody sets themselves."""


def with_sites(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, kebab-case, with what `sites` makes of those that are not among them."""
    return {**(REMOTE if values.get("sites") == "remote" else {}), **values}


def laid_over(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an app with changes for one run, kebab-case both.

    An app's best-model is a wish, which a run that cannot know the best model does without: the server reads no model
    of a plain exchange, and without dp-metric-bound nothing private is evaluated. If the changes name best-model
    themselves, it stays, for `JobSettings` to refuse.
    """
    values = {**settings, **with_sites(changes)}
    private = values.get("dp-epsilon") or values.get("dp-noise-multiplier")
    unknown = values.get("aggregation", "secure") != "secure" or (private and not values.get("dp-metric-bound"))
    return {**values, "best-model": ""} if unknown and "best-model" not in changes else values


@dataclass(slots=True)
class ModelSelection:
    """Which evaluation was the best so far.

    rule
        None selects nothing.
    best
        The value of the best evaluation.
    missing
        What to warn of if neither the last evaluation nor the strategy's figures have the rule's metric; else empty.
    """

    rule: BestRule | None
    best: float | None = field(default=None, init=False)
    missing: str = field(default="", init=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """By the setting best-model; raises ConfigurationError."""
        return cls(BestRule.parse(text))

    def judge(self, metrics: Mapping[str, Any]) -> bool:
        """An evaluation gave these metrics; returns whether its model is the best so far."""
        value = self._value(metrics)
        if self.rule is None or not self.rule.beats(value, self.best):
            return False
        self.best = value
        return True

    def note_missing(self, metrics: Mapping[str, Any]) -> None:
        """An evaluation gave these metrics just now: the strategy's figures are the last chance for the rule's."""
        self.missing = self.rule.absent(metrics) if self.rule is not None and self._value(metrics) is None else ""

    def judge_figures(self, metrics: Mapping[str, Any]) -> bool:
        """Whether the last model is the best so far, by what the strategy made of its evaluation."""
        if self._value(metrics) is not None:
            self.missing = ""
        return self.judge(metrics)

    def describe(self) -> str:
        """The best evaluation, for the file of its model."""
        return self.rule.describe(self.best) if self.rule is not None and self.best is not None else ""

    def _value(self, metrics: Mapping[str, Any]) -> float | None:
        return self.rule.value(metrics) if self.rule is not None else None
