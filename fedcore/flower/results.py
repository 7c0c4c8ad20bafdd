"""What a strategy found in a run, as plain JSON: Flower's Result without its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result


def results_of(result: Result | None) -> dict[str, Any]:
    """Metrics by round: "train" and "evaluate" of the clients, aggregated, and "server" for what `evaluate_fn` said.

    Lists are whole. Nothing where no strategy ended.
    """
    if result is None:
        return {}
    return {
        "train": _by_round(result.train_metrics_clientapp),
        "evaluate": _by_round(result.evaluate_metrics_clientapp),
        "server": _by_round(result.evaluate_metrics_serverapp),
    }


def _by_round(metrics: Mapping[int, MetricRecord]) -> dict[str, dict[str, Any]]:
    return {str(number): dict(record) for number, record in sorted(metrics.items())}
