"""How many nodes Flower's own strategies will sample and wait for, computed in advance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from fedcore.flower.grid.aggregation_guard import callers, looping_strategy, of_flower, variable
from fedcore.flower.grid.declarations import code_of

_SAMPLE = sample_nodes.__code__
_SETTINGS: Final = (
    "min_available_nodes", "min_train_nodes", "min_evaluate_nodes",
    "min_available_clients", "min_fit_clients", "min_evaluate_clients",
)  # fmt: skip
_REPORT_SECONDS: Final = 10.0
_APART: Final = 60.0
"""Seconds between two questions for nodes after which the second begins another wait."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a strategy will ask in each round: `size` nodes, once `least` are there."""

    message_type: str
    size: int
    least: int


def samples(present: int) -> list[Sample]:
    """What the strategy on the stack will ask of `present` nodes; nothing of functions that are the app's own."""
    strategy = looping_strategy()
    if strategy is None:
        return []
    return list(_legacy(strategy, present) if isinstance(strategy, LegacyStrategy) else _sampled(strategy, present))


@dataclass(frozen=True, slots=True)
class NodeWait:
    """What code that asks for nodes waits for.

    nodes: how many, 0 if that is not known.
    setting: which says so.
    """

    nodes: int
    setting: str = ""

    @classmethod
    def of(cls, nodes: int) -> NodeWait:
        """With the setting of the strategy on the stack that has this value, if there is one."""
        strategy: Any = looping_strategy()
        while strategy is not None:
            if (name := next((it for it in _SETTINGS if getattr(strategy, it, None) == nodes), "")) != "":
                return cls(nodes, f"{name}={nodes}")
            strategy = getattr(strategy, "strategy", None)  # of one that wraps another
        return cls(nodes)


def node_wait() -> NodeWait | None:
    """What the code on the stack waits for; None if Flower itself looks who is there."""
    if nodes := waited_for():
        return NodeWait.of(nodes)
    caller = next(callers(), None)
    return None if caller is None or of_flower(caller.f_code) else NodeWait(0)


@dataclass(slots=True)
class Polling:
    """How long nodes have been asked for in vain, and when that is to be said.

    clock: seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _last: float | None = field(default=None, init=False)
    _last_report: float = field(default=0.0, init=False)

    def in_vain(self) -> bool:
        """Note that nodes were asked for and did not suffice; whether it is time to say so."""
        now = self.clock()
        if self._last is None or now - self._last > _APART:
            self._last_report = now
        self._last = now
        if now - self._last_report < _REPORT_SECONDS:
            return False
        self._last_report = now
        return True

    def over(self) -> None:
        """There are enough, or something was sent."""
        self._last = None


def waited_for() -> int:
    """How many nodes a strategy on the stack waits for; 0 if none does."""
    return next((int(variable(frame, "min_available_nodes")) for frame in callers() if frame.f_code is _SAMPLE), 0)


def _sampled(strategy: Any, present: int) -> Iterator[Sample]:
    """As `configure_train` and `configure_evaluate` of Flower's strategies draw."""
    for kind in ("train", "evaluate"):
        fraction = getattr(strategy, f"fraction_{kind}", 0.0)
        if fraction == 0.0 or not of_flower(code_of(getattr(strategy, f"configure_{kind}"))):
            continue
        size = max(int(present * fraction), getattr(strategy, f"min_{kind}_nodes"))
        yield Sample(kind, size, max(strategy.min_available_nodes, size))


def _legacy(strategy: Any, present: int) -> Iterator[Sample]:
    """As `configure_fit` and `configure_evaluate` of the legacy ones do."""
    for kind, configure, count in (
        ("train", "configure_fit", "num_fit_clients"),
        ("evaluate", "configure_evaluate", "num_evaluation_clients"),
    ):
        if not all(of_flower(code_of(getattr(strategy, name, None))) for name in (configure, count)):
            continue
        if kind == "train" or strategy.fraction_evaluate != 0.0:
            size, least = getattr(strategy, count)(present)
            yield Sample(kind, size, least)
