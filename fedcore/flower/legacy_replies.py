"""Converts the reply of a legacy ClientApp (`client_fn`, NumPyClient) for secure mode."""

from __future__ import annotations

from typing import Any, Final

from flwr.app import RecordDict
from flwr.common import Code

from fedcore.errors import AppError

LEGACY_EXAMPLES: Final = "num_examples"


def legacy_metrics(content: RecordDict) -> dict[str, Any] | None:
    """The examples and the metrics of a legacy client's reply, which has a record for each; None for any other reply.

    Raises AppError if the client says that it failed, or for a metric that is no number.
    """
    kind = next((kind for kind in ("fitres", "evaluateres") if f"{kind}.status" in content.config_records), None)
    if kind is None:
        return None
    status = content.config_records[f"{kind}.status"]
    if status["code"] != Code.OK.value:
        raise AppError(f"the client failed: {status['message']!s}")
    metrics: dict[str, Any] = dict(content.config_records[f"{kind}.metrics"])
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise AppError(
                f"metric {name!r} is a {type(value).__name__}; with secure aggregation a metric is a number, which "
                'can be added (or set aggregation = "plain")'
            )
    if kind == "evaluateres":
        metrics["loss"] = content.metric_records["evaluateres.loss"]["loss"]
    return {**metrics, LEGACY_EXAMPLES: content.metric_records[f"{kind}.{LEGACY_EXAMPLES}"][LEGACY_EXAMPLES]}
