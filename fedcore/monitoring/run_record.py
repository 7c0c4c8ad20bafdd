"""The record of a run, built from its events, for reports, plots and terminals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import mean
from typing import Any

from fedcore.wire.base import MetricValue
from fedcore.wire.events import (
    ClientDropped,
    ExchangeDone,
    ExchangeFailed,
    ExchangeRepeated,
    FiguresFound,
    GroupEnded,
    PrivacyTerms,
    RunEnded,
    RunEvent,
    RunStarted,
    TrafficCounted,
    Warned,
)
from fedcore.wire.tasks import is_query
from fedcore.wire.uploads import Contribution, contributions


@dataclass(slots=True)
class RunRecord:
    """Everything that is kept of one run.

    ends: when each of the exchanges was done, seconds since the run began.
    figures: source -> round -> what the ServerApp made of the replies, as `FiguresFound`.
    lost: attempts without a sum, whose bytes travelled anyway.
    traffic: all bytes of the run; None if nobody counted them, as in a simulation.
    """

    aggregation: str = ""
    privacy: PrivacyTerms | None = None
    exchanges: list[ExchangeDone] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    figures: dict[str, dict[int, dict[str, MetricValue]]] = field(default_factory=dict)
    dropouts: list[ClientDropped] = field(default_factory=list)
    failures: list[ExchangeFailed] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    repeats: list[ExchangeRepeated] = field(default_factory=list)
    lost: list[ExchangeFailed | ExchangeRepeated | GroupEnded] = field(default_factory=list)
    traffic: TrafficCounted | None = None
    status: str = ""
    reason: str = ""

    def add(self, event: RunEvent, seconds: float) -> None:
        """Take one event that happened `seconds` after the run began; kinds that leave no trace are passed over."""
        match event:
            case RunStarted():
                self.aggregation, self.privacy = event.aggregation, event.privacy
            case ExchangeDone():
                self.exchanges.append(event)
                self.ends.append(seconds)
            case FiguresFound():
                self.figures.setdefault(event.source, {}).setdefault(event.server_round, {}).update(event.metrics)
            case ClientDropped():
                self.dropouts.append(event)
            case ExchangeFailed():
                self.failures.append(event)
                self.lost.append(event)
            case GroupEnded(reason=reason) if reason:
                self.lost.append(event)
            case Warned():
                self.warnings.append(event.line)
            case ExchangeRepeated():
                self.repeats.append(event)
                self.lost.append(event)
            case TrafficCounted():
                self.traffic = event
            case RunEnded():
                self.status, self.reason = event.status.value, event.reason

    def curve(self, metric: str) -> list[tuple[int, float, float]]:
        """(server round, seconds since the start, value) for every evaluation that has the metric."""
        return [
            (exchange.server_round, end, float(value))
            for exchange, end in zip(self.exchanges, self.ends, strict=True)
            if not exchange.trains and isinstance(value := self.metrics_of(exchange).get(metric), int | float)
        ]

    def final_metrics(self) -> dict[str, MetricValue]:
        """The metrics of the last evaluation; of the last training where nothing was evaluated."""
        evaluated = self.evaluations()
        if evaluated:
            return evaluated[max(evaluated)]
        last = [exchange for exchange in self.exchanges if exchange.trains][-1:] or self.exchanges[-1:]
        return self.metrics_of(last[0]) if last else {}

    def evaluations(self) -> dict[int, dict[str, MetricValue]]:
        """Round -> the metrics of its evaluation.

        An app that asks its clients queries alone, as one of boosted trees, has those that its ServerApp found.
        """
        if all(is_query(exchange.message_type) for exchange in self.exchanges):
            return {number: dict(metrics) for number, metrics in self.figures.get("evaluate", {}).items()}
        return {one.server_round: self.metrics_of(one) for one in self.exchanges if one.evaluates}

    def metrics_of(self, exchange: ExchangeDone) -> dict[str, MetricValue]:
        """Of an exchange, with what the ServerApp made of them."""
        if not exchange.trains and not exchange.evaluates:
            return dict(exchange.metrics)
        source = "train" if exchange.trains else "evaluate"
        return {**exchange.metrics, **self.figures.get(source, {}).get(exchange.server_round, {})}

    def epsilon_spent(self) -> float | None:
        """What the run spent, at the delta of its terms; None without differential privacy."""
        if self.privacy is None:
            return None
        return max((exchange.epsilon_spent or 0.0 for exchange in self.exchanges), default=0.0)

    def rounds(self) -> int:
        """The last round that an exchange was completed of; questions count where there was nothing else."""
        return max((exchange.server_round for exchange in self.of_rounds()), default=0)

    def of_rounds(self) -> list[ExchangeDone]:
        """The exchanges that rounds consist of: all but questions, or all where there was nothing else."""
        return [one for one in self.exchanges if not is_query(one.message_type)] or self.exchanges

    def samples(self) -> int:
        """Examples reported by all training exchanges together; 0 if they are private."""
        if self.privacy is not None:
            return 0
        return sum(exchange.examples for exchange in self.exchanges if exchange.trains)

    def bytes_per_client(self) -> tuple[float, float]:
        """Mean over the clients of the bytes that one sent and received in the whole run."""
        travelled = [*self.exchanges, *self.lost]
        return _per_client([e.bytes_up for e in travelled]), _per_client([e.bytes_down for e in travelled])

    def contributions(self) -> dict[str, Contribution]:
        """What each site gave, by name."""
        return contributions([one.update_bytes for one in (*self.exchanges, *self.lost) if one.update_bytes])

    def seconds(self) -> float:
        """Sum of the durations of all completed exchanges."""
        return sum(exchange.seconds for exchange in self.exchanges)

    def virtual_ends(self) -> list[float] | None:
        """When each of the exchanges was done on the virtual clock; None without one."""
        seconds = [exchange.virtual_seconds for exchange in self.exchanges]
        known = [one for one in seconds if one is not None]
        return list(accumulate(known)) if known and len(known) == len(seconds) else None

    def summary(self) -> dict[str, Any]:
        """What a script wants to know, as plain JSON."""
        up, down = self.bytes_per_client()
        return {
            "status": self.status,
            "reason": self.reason,
            "aggregation": self.aggregation,
            "privacy": self.privacy.model_dump() if self.privacy is not None else None,
            "epsilon_spent": self.epsilon_spent(),
            "rounds": self.rounds(),
            "metrics": self.final_metrics(),
            "samples": self.samples(),
            "seconds": round(self.seconds(), 3),
            "virtual_seconds": round(ends[-1], 3) if (ends := self.virtual_ends()) else None,
            "bytes_up_per_client": round(up),
            "bytes_down_per_client": round(down),
            "contributions": {name: gave.model_dump() for name, gave in sorted(self.contributions().items())},
            "all_bytes": None if self.traffic is None else self.traffic.model_dump(exclude={"kind"}),
            "contributed_nothing": sum(exchange.failures for exchange in self.exchanges),
            "clipped_elements": sum(exchange.clipped for exchange in self.exchanges),
            "most_norm_lost": max((exchange.lost_norm for exchange in self.exchanges), default=0.0),
            "repeats": len(self.repeats),
            "warnings": list(self.warnings),
            "dropouts": [dropped.model_dump(exclude={"kind"}) for dropped in self.dropouts],
            "failures": [failed.model_dump(exclude={"kind", "bytes_up", "bytes_down"}) for failed in self.failures],
        }


def metric_like(metrics: Iterable[str], word: str) -> str | None:
    """The first of the names that holds `word` ("acc", "loss"), None if none does."""
    return next((name for name in sorted(metrics) if word in name.lower()), None)


def _per_client(exchanges: list[Mapping[str, int]] | list[dict[str, int]]) -> float:
    names = {name for exchange in exchanges for name in exchange}
    return mean(sum(exchange.get(name, 0) for exchange in exchanges) for name in names) if names else 0.0
