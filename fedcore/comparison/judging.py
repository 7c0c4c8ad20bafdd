"""The metric that judges the models of a comparison, and whether more of it is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fedcore.errors import ConfigurationError

Better: TypeAlias = Literal["max", "min"]
ACCURACY, LOSS = "accuracy", "loss"
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
    found = list(dict.fromkeys(names))
    known: dict[str, Better | None] = {
        name: better for word, better in _WORDS.items() for name in found if word in name.lower()
    }
    return {**known, **{name: None for name in found if name not in known}}


def choose(wanted: MetricChoice | None, known: Known) -> JudgedBy | None:
    """The metric to judge by: the one that was asked for, else the first with a known direction; None if there is none.

    Raises ConfigurationError, with what there is, for a name that does not exist or an unknown direction.
    """
    if wanted is None:
        return next((JudgedBy(name=name, better=better) for name, better in known.items() if better), None)
    if wanted.name not in known:
        raise ConfigurationError(
            f"--metric {wanted.name}: there is no such metric; {listed(known)}", check="no-such-metric"
        )
    better = wanted.better or known[wanted.name]
    if better is None:
        name = wanted.name
        raise ConfigurationError(
            f"--metric {name}: say whether more of it is better, {name}:max or {name}:min", check="no-direction"
        )
    return JudgedBy(name=wanted.name, better=better)


def listed(known: Known) -> str:
    """The metrics in a sentence."""
    if not known:
        return "nothing was evaluated"
    return "there are " + ", ".join(f"{name}:{better}" if better else name for name, better in known.items())
