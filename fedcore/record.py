"""The record of a run, built from its events: what a report, a plot and a terminal need to know.

Events have the kinds and data of `fedcore.wire.EVENT_KINDS`, whether they come from a server, the simulator or a
baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from fedcore.wire import MetricValue, is_training

EventSink = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRecord:
    """One completed exchange. seconds: its duration; at: seconds since the run began, at its end.

    clipped: elements of all updates that met the bound of their field. bytes_up, bytes_down: by client name.
    epsilon: what the run has spent up to here, None without differential privacy.
    """

    server_round: int
    message_type: str
    examples: int
    metrics: Mapping[str, MetricValue]
    survivors: tuple[str, ...]
    clipped: int
    seconds: float
    at: float
    stage_seconds: Mapping[str, float]
    bytes_up: Mapping[str, int]
    bytes_down: Mapping[str, int]
    epsilon: float | None = None

    @property
    def trains(self) -> bool:
        """Whether the exchange made a new model."""
        return is_training(self.message_type)


@dataclass(slots=True)
class RunRecord:
    """Everything that is kept of one run."""

    aggregation: str = ""
    privacy: Mapping[str, Any] | None = None
    exchanges: list[ExchangeRecord] = field(default_factory=list)
    dropouts: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    status: str = ""
    reason: str = ""
    _attempts: dict[int, int] = field(default_factory=dict)

    def add(self, kind: str, data: Mapping[str, Any], seconds: float) -> None:
        """Take one event that happened `seconds` after the run began; kinds that leave no trace are passed over."""
        if kind == "started":
            self.aggregation, self.privacy = str(data["aggregation"]), data.get("privacy")
        elif kind == "exchange-done":
            self.exchanges.append(_exchange(data, seconds))
        elif kind == "dropped":
            self.dropouts.append(dict(data))
        elif kind == "exchange-failed":
            self.failures.append(dict(data))
        elif kind == "ended":
            self.status, self.reason = str(data["status"]), str(data["reason"])

    def curve(self, metric: str) -> list[tuple[int, float, float]]:
        """(server round, seconds since the start, value) for every evaluation that has the metric."""
        return [
            (exchange.server_round, exchange.at, float(value))
            for exchange in self.exchanges
            if not exchange.trains and isinstance(value := exchange.metrics.get(metric), int | float)
        ]

    def final_metrics(self) -> dict[str, MetricValue]:
        """The metrics of the last evaluation; of the last training where nothing was evaluated."""
        evaluations = [exchange for exchange in self.exchanges if not exchange.trains]
        last = (evaluations or self.exchanges)[-1:]
        return dict(last[0].metrics) if last else {}

    def metric_like(self, word: str) -> str | None:
        """The first metric of the last evaluation whose name holds `word` ("acc", "loss"), None if there is none."""
        return next((name for name in sorted(self.final_metrics()) if word in name.lower()), None)

    def epsilon(self) -> float | None:
        """What the run spent, at the delta of its plan; None without differential privacy."""
        if self.privacy is None:
            return None
        return max((exchange.epsilon or 0.0 for exchange in self.exchanges), default=0.0)

    def samples(self) -> int:
        """Examples reported by all training exchanges together; 0 where they are private."""
        if self.privacy is not None:
            return 0
        return sum(exchange.examples for exchange in self.exchanges if exchange.trains)

    def bytes_per_client(self) -> tuple[float, float]:
        """Mean over the clients of the bytes that one sent and received in the whole run."""
        return _per_client([e.bytes_up for e in self.exchanges]), _per_client([e.bytes_down for e in self.exchanges])

    def seconds(self) -> float:
        """Sum of the durations of all completed exchanges."""
        return sum(exchange.seconds for exchange in self.exchanges)

    def summary(self) -> dict[str, Any]:
        """What a script wants to know, as plain JSON."""
        up, down = self.bytes_per_client()
        return {
            "status": self.status,
            "reason": self.reason,
            "aggregation": self.aggregation,
            "privacy": dict(self.privacy) if self.privacy is not None else None,
            "epsilon": self.epsilon(),
            "rounds": max((exchange.server_round for exchange in self.exchanges), default=0),
            "metrics": self.final_metrics(),
            "samples": self.samples(),
            "seconds": round(self.seconds(), 3),
            "bytes_up_per_client": round(up),
            "bytes_down_per_client": round(down),
            "clipped_elements": sum(exchange.clipped for exchange in self.exchanges),
            "dropouts": self.dropouts,
            "failures": self.failures,
        }


def _exchange(data: Mapping[str, Any], at: float) -> ExchangeRecord:
    return ExchangeRecord(
        server_round=int(data["server_round"]),
        message_type=str(data["message_type"]),
        examples=int(data["examples"]),
        metrics=dict(data["metrics"]),
        survivors=tuple(data["survivors"]),
        clipped=int(data.get("clipped", 0)),
        seconds=float(data["seconds"]),
        at=at,
        stage_seconds=dict(data.get("stage_seconds", {})),
        bytes_up=dict(data.get("bytes_up", {})),
        bytes_down=dict(data.get("bytes_down", {})),
        epsilon=data.get("epsilon"),
    )


def _per_client(exchanges: list[Mapping[str, int]]) -> float:
    names = {name for exchange in exchanges for name in exchange}
    return mean(sum(exchange.get(name, 0) for exchange in exchanges) for name in names) if names else 0.0
