"""Figures of an app's own evaluation, by its clients and by its ServerApp, each under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fedcore.comparison.results import Metrics, as_metrics

CLIENTS: Final = "clients/"
"""Before the name of what clients report, where the ServerApp's own evaluation has another figure of that name."""

ByRound: TypeAlias = Mapping[int, Metrics]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppEvaluation:
    """rounds: metrics by round, 0 for the first model. server: the names of those that `evaluate_fn` gave."""

    rounds: ByRound = field(default_factory=dict)
    server: tuple[str, ...] = ()

    @classmethod
    def of(cls, results: Mapping[str, Any], exchanges: ByRound) -> AppEvaluation:
        """Put what a run left together.

        Args:
            results: as `fedcore.flower.results.results_of` has them, {} if no strategy ended. Its "evaluate" is what
                the strategy made of the clients' metrics.
            exchanges: what the evaluations gave, for runs without it.
        """
        server = _by_round(results, "server")
        clients = _by_round(results, "evaluate") or exchanges
        names = dict.fromkeys(name for metrics in server.values() for name in metrics)
        rounds = {
            number: {**server.get(number, {}), **_apart(clients.get(number, {}), names)}
            for number in sorted(server.keys() | clients.keys())
        }
        return cls(rounds=rounds, server=tuple(names))


def _apart(metrics: Metrics, names: Mapping[str, None]) -> dict[str, float | tuple[float, ...]]:
    return {CLIENTS + name if name in names else name: value for name, value in metrics.items()}


def _by_round(results: Mapping[str, Any], part: str) -> dict[int, Metrics]:
    rounds = {int(number): as_metrics(_numbers(metrics)) for number, metrics in results.get(part, {}).items()}
    return {number: metrics for number, metrics in rounds.items() if metrics}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Those that can be compared; Flower's legacy API lets an app report anything."""
    return {
        name: value
        for name, value in metrics.items()
        if all(isinstance(number, int | float) for number in (value if isinstance(value, list | tuple) else [value]))
    }
