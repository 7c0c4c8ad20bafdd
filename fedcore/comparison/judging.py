"""The metric that judges the models of a comparison, and whether more of it is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fedcore.errors import ConfigurationError

Better: TypeAlias = Literal["max", "min"]
ACCURACY, LOSS = "accuracy", "loss"
PROBABILITIES: Final = ("auc", "brier", "ece")
"""Metrics of two classes that stand next to their accuracy."""
_WORDS: Final[Mapping[str, Better]] = {"acc": "max", LOSS: "min"}
"""Parts of the names that need no explanation."""

Known: TypeAlias = Mapping[str, Better | None]
"""The metrics that there are, the most important first; None if nobody said whether more is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBy:
    """A metric by its name.

    better: whether a larger or a smaller value means a better model.
    """

    name: str
    better: Better


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChoice:
    """The metric that `--metric` asks for.

    better: None if it was left open.
    """

    name: str
    better: Better | None = None

    @classmethod
    def parse(cls, text: str) -> MetricChoice:
        """Read `c_index`, `rmse:min` or `auc:max`; raises ConfigurationError."""
        name, colon, better = text.rpartition(":") if ":" in text else (text, "", "")
        if not name or (colon and better not in ("max", "min")):
            raise ConfigurationError(
                f"--metric is NAME, NAME:max or NAME:min, as in c_index:max, not {text!r}", check="metric-form"
            )
        return cls(name=name, better="max" if better == "max" else "min" if better == "min" else None)


def known_by_name(names: Iterable[str]) -> dict[str, Better | None]:
    """Metrics of which the names alone are known: accuracies first, then losses, then the others."""
    distinct = list(dict.fromkeys(names))
    directions: dict[str, Better | None] = {
        name: better for word, better in _WORDS.items() for name in distinct if word in name.lower()
    }
    return {**directions, **{name: None for name in distinct if name not in directions}}


def choose(choice: MetricChoice | None, metrics: Known) -> JudgedBy | None:
    """The metric to judge by: the one that was asked for, else the first with a known direction; None if there is none.

    Raises ConfigurationError, with what there is, for a name that does not exist or an unknown direction.
    """
    if choice is None:
        return next((JudgedBy(name=name, better=better) for name, better in metrics.items() if better), None)
    if choice.name not in metrics:
        raise ConfigurationError(
            f"--metric {choice.name}: there is no such metric; {listed(metrics)}", check="no-such-metric"
        )
    better = choice.better or metrics[choice.name]
    if better is None:
        name = choice.name
        raise ConfigurationError(
            f"--metric {name}: say whether more of it is better, {name}:max or {name}:min", check="no-direction"
        )
    return JudgedBy(name=choice.name, better=better)


def listed(metrics: Known) -> str:
    """The metrics in a sentence."""
    if not metrics:
        return "nothing was evaluated"
    return "there are " + ", ".join(f"{name}:{better}" if better else name for name, better in metrics.items())
