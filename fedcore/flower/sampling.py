"""How many nodes Flower's own strategies ask and wait for, as far as that is known before they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from fedcore.flower.declarations import code_of
from fedcore.flower.handover import callers, looping_strategy, of_flower

_SAMPLE = sample_nodes.__code__


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


def waited_for() -> int:
    """How many nodes a strategy on the stack waits for; 0 where none does."""
    return next((int(frame.f_locals["min_available_nodes"]) for frame in callers() if frame.f_code is _SAMPLE), 0)


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
