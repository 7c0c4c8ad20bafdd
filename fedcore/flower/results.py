"""The results of a ServerApp as plain JSON: Flower's Result without its model, or its legacy History."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from flwr.app import MetricRecord
from flwr.server import History
from flwr.serverapp.strategy import Result

Results: TypeAlias = dict[str, Any]
OnResults: TypeAlias = Callable[[Results], None]
"""Takes what a run found, however it ended."""


def results_of(result: Result | History | None) -> Results:
    """Metrics by round: "train" and "evaluate" of the clients, aggregated, and "server" for what `evaluate_fn` said.

    Lists are whole. The losses of a History are metrics named "loss". Nothing if no loop of Flower's ran, or found
    anything.
    """
    results = _all_of(result) if result is not None else {}
    return results if any(results.values()) else {}


def _all_of(result: Result | History) -> Results:
    if isinstance(result, History):
        return {
            "train": _of_history((), result.metrics_distributed_fit),
            "evaluate": _of_history(result.losses_distributed, result.metrics_distributed),
            "server": _of_history(result.losses_centralized, result.metrics_centralized),
        }
    return {
        "train": _by_round(result.train_metrics_clientapp),
        "evaluate": _by_round(result.evaluate_metrics_clientapp),
        "server": _by_round(result.evaluate_metrics_serverapp),
    }


def _by_round(metrics: Mapping[int, MetricRecord]) -> dict[str, dict[str, Any]]:
    return {str(number): dict(record) for number, record in sorted(metrics.items())}


def _of_history(
    losses: Iterable[tuple[int, float]], metrics: Mapping[str, Iterable[tuple[int, Any]]]
) -> dict[str, dict[str, Any]]:
    rounds: dict[int, dict[str, Any]] = defaultdict(dict)
    for name, values in (*metrics.items(), ("loss", losses)):
        for number, value in values:
            rounds[number][name] = _plain(value)
    return {str(number): rounds[number] for number in sorted(rounds)}


def _plain(value: object) -> Any:
    """A value of a legacy metric, which no type holds to numbers; what JSON does not know is written as Python does."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, bool | int | float | str | None) else repr(value)
