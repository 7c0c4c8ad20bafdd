"""The curves and the results of the runs as CSV, with every digit of report.json: one row a point, one row a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import all_bytes, per_worker
from fedcore.comparison.results import CurvePoint, Metrics, RunResult

_NAMES: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_AMOUNTS: Final = tuple(field.name for field in fields(CurvePoint) if field.name != "metrics")
_Row: TypeAlias = dict[str, Any]


def curves_csv(comparison: Comparison) -> str:
    """A row for each point of each curve: which run, round and amounts up to it, then the metrics by name.

    Amounts are those of `CurvePoint`; a number that JSON lacks has its name from report.json.
    """
    return _csv(
        [
            {
                **_which(comparison, run),
                **{name: getattr(point, name) for name in _AMOUNTS},
                **_metrics(point.metrics),
            }
            for run in comparison.runs
            for point in run.curve
        ]
    )


def finals_csv(comparison: Comparison) -> str:
    """A row for each run: status, amounts of the whole run, then the metrics of its last model.

    Bytes and steps are means over the workers.
    """
    return _csv(
        [
            {
                **_which(comparison, run),
                "status": run.status,
                "reason": run.reason,
                "parameters": run.parameters,
                "samples": run.samples,
                "steps": per_worker(run.steps),
                "seconds": run.seconds,
                "start_seconds": run.start_seconds,
                "wall_seconds": run.wall_seconds,
                "simulated_seconds": run.simulated_seconds,
                "bytes_up": per_worker(run.bytes_up),
                "bytes_down": per_worker(run.bytes_down),
                "all_bytes": all_bytes(run),
                "epsilon": run.epsilon_spent,
                "trials_epsilon": run.trials_epsilon,
                "initial_sha256": run.initial_sha256,
                "model_sha256": run.model_sha256,
                **_metrics(run.metrics),
            }
            for run in comparison.runs
        ]
    )


def _which(comparison: Comparison, run: RunResult) -> _Row:
    """What tells a run from the others."""
    simulation = run.mode in comparison.simulations
    point = {f"set:{key}": run.point.get(key) for key in comparison.sweeps}
    return {"mode": run.mode, "kind": run.kind, "simulation": simulation, "seed": run.seed, **point}


def _metrics(metrics: Metrics) -> _Row:
    """A column for each metric, and for each number of one that has several."""
    columns: _Row = {}
    for name, value in metrics.items():
        if isinstance(value, tuple):
            columns |= {f"metric:{name}[{index}]": one for index, one in enumerate(value)}
        else:
            columns[f"metric:{name}"] = value
    return columns


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows([{name: _cell(value) for name, value in row.items()} for row in rows])
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, float) else str(value)
    return _NAMES.get(text, text) if isinstance(value, float) else text
