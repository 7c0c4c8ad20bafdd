"""A target value of a metric, and when a run first had a model that reached it.

The time to a target is what asynchrony and stragglers are compared by (Nguyen et al. 2022, arXiv 2106.06639, section
5): a round of one is not a round of the other. What counts is the first model whose own evaluation reaches the target,
at the end of the training that made it; nothing is interpolated between models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from fedcore.comparison.app_evaluation import CLIENTS
from fedcore.comparison.judging import Better, known_by_name
from fedcore.comparison.results import CurvePoint, number_of
from fedcore.errors import ConfigurationError
from fedcore.system.assignments import finite_number
from fedcore.wire.events import ExchangeDone, FiguresFound, RunEvent

_SHAPE = "--target is NAME:VALUE, NAME:VALUE:max or NAME:VALUE:min, as in eval_acc:0.9 or rmse:4:min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The first model that reached a target.

    round: of the run; 0 for the model that it began with.
    value: of the metric.
    seconds: of training up to there, on this machine.
    virtual_seconds: the same on the virtual clock of simulated devices; None without one.
    samples: examples that all workers together trained on up to there; None if nobody counts them.
    bytes: of training up to there, both ways, mean over the workers.
    """

    round: int
    value: float
    seconds: float
    virtual_seconds: float | None
    samples: int | None = None
    bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A value of a metric.

    better: whether models are to be above or below it; the value itself is enough.
    """

    metric: str
    value: float
    better: Better

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `eval_acc:0.9` or `rmse:4:min`; raises ConfigurationError.

        Without max or min the name says it, where it is that of an accuracy or of a loss.
        """
        words = text.split(":")
        better: str | None = words.pop() if words[-1] in ("max", "min") else None
        name, value = ":".join(words[:-1]), finite_number(words[-1])
        if not name or value is None:
            raise ConfigurationError(f"{_SHAPE}, not {text!r}", check="target-form")
        better = better or known_by_name([name])[name]
        if better is None:
            raise ConfigurationError(
                f"--target {text}: say whether more of {name} is better, {text}:max or {text}:min", check="no-direction"
            )
        return cls(metric=name, value=value, better="max" if better == "max" else "min")

    @classmethod
    def of(cls, target: Mapping[str, Any]) -> Self:
        """Of what `target` says."""
        return cls(metric=target["metric"], value=target["value"], better=target["better"])

    def __str__(self) -> str:
        return f"{self.metric} {'≥' if self.better == 'max' else '≤'} {self.value:g}"

    def met(self, value: float) -> bool:
        """Whether a model with this value is good enough."""
        return value >= self.value if self.better == "max" else value <= self.value

    def reached(self, curve: Iterable[CurvePoint]) -> Reached | None:
        """The first of these models, in the order of their rounds, that is good enough; None if none is."""
        for point in curve:
            value = number_of(point.metrics, self.metric)
            if value is not None and self.met(value):
                return Reached(
                    round=point.round,
                    value=value,
                    seconds=point.seconds,
                    virtual_seconds=point.simulated_seconds,
                    samples=point.samples,
                    bytes=point.bytes_up + point.bytes_down,
                )
        return None

    def progress(self, curve: Sequence[CurvePoint]) -> dict[str, Any]:
        """The target and what came of it, as plain JSON.

        reached: as `Reached`, None if no model did. best: the best value of any model, None if no evaluation
        reports the metric.
        """
        reached = self.reached(curve)
        values = [value for point in curve if (value := number_of(point.metrics, self.metric)) is not None]
        best = (max if self.better == "max" else min)(values, default=None)
        return {**asdict(self), "reached": None if reached is None else asdict(reached), "best": best}


class UnreportedTarget:
    """Notices, once a second round trains, that no evaluation has the metric of a target, which may be a wrong name."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._names: set[str] = set()
        self._rounds: set[int] = set()
        self._warned = False

    def take(self, event: RunEvent) -> str:
        """What is to be said after an event of the run; mostly nothing."""
        match event:
            case ExchangeDone() if event.evaluates:
                self._names.update(event.metrics)
            case FiguresFound(source="evaluate" | "server", metrics=metrics):
                self._names.update(metrics)
            case ExchangeDone() if event.trains:
                self._rounds.add(event.server_round)
        if self._warned or len(self._rounds) < 2 or self._target.metric.removeprefix(CLIENTS) in self._names:
            return ""
        self._warned = True
        there = ", ".join(sorted(self._names)) or "nothing"
        return f"--target: no evaluation has reported {self._target.metric!r} so far; there is {there}"


def line_of(progress: Mapping[str, Any], reported: Iterable[str]) -> str:
    """What `Target.progress` says, in words.

    Args:
        reported: names of metrics that there are, for who asked for another.
    """
    target = Target.of(progress)
    if (reached := progress["reached"]) is not None:
        clock = "" if reached["virtual_seconds"] is None else f", virtual {reached['virtual_seconds']:.1f} s"
        return f"{target}: first in round {reached['round']}, after {reached['seconds']:.1f} s of training{clock}"
    if progress["best"] is not None:
        return f"{target}: not reached, the best was {progress['best']:.4f}"
    names = ", ".join(sorted(reported))
    return f"{target}: no evaluation reports {target.metric!r}; there is {names or 'nothing'}"
