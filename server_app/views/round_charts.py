"""Figures of the rounds of a run for charts, updated from its events: some hundred bytes a round."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from fedcore.monitoring.promise import promise_of
from fedcore.wire.base import MetricValue
from fedcore.wire.events import (
    AttemptEnd,
    ExchangeDone,
    ExchangeStarted,
    FiguresFound,
    PrivacyTerms,
    Recorded,
    RunStarted,
)
from fedcore.wire.watch import RoundOut, RoundsOut

MOST_ROUNDS = 10_000
"""Beyond that the oldest are left out."""


@dataclass(slots=True)
class _Round:
    seconds: float = 0.0
    train: dict[str, MetricValue | None] = field(default_factory=dict)
    evaluate: dict[str, MetricValue | None] = field(default_factory=dict)
    server: dict[str, MetricValue | None] = field(default_factory=dict)
    up: int = 0
    down: int = 0
    epsilon: float | None = None
    cohort: int = 0
    survivors: int = 0
    has_trained: bool = False


class RoundCharts:
    """Takes the events of one run in order.

    Queries belong to no round, unless a run has nothing else, as one of boosted trees.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, _Round] = {}
        self._queries: dict[int, _Round] = {}
        self._planned: int | None = None
        self._privacy: PrivacyTerms | None = None
        self._promise = ""
        self._cohort = (0, 0)
        """The exchange that was opened last, and how many clients were asked."""
        self._lost_up, self._lost_down = Counter[int](), Counter[int]()
        """Bytes of attempts that failed, by round."""
        self._up = self._down = 0

    def take(self, item: Recorded) -> None:
        """One more event."""
        if isinstance(item.event, AttemptEnd):
            self._count(item.event)
        match item.event:
            case RunStarted(rounds=planned, privacy=privacy, aggregation=aggregation):
                self._planned, self._privacy = planned, privacy
                self._promise = promise_of(privacy) if aggregation == "secure" else ""
            case ExchangeStarted(exchange=exchange, cohort=cohort):
                self._cohort = (exchange, len(cohort))
            case FiguresFound(source=source, server_round=number, metrics=metrics):
                entry = self._round(self._rounds, number)
                {"train": entry.train, "evaluate": entry.evaluate, "server": entry.server}[source].update(
                    _drawable(metrics)
                )
            case ExchangeDone() as done if done.trains or done.evaluates:
                self._add(self._rounds, done)
            case ExchangeDone() as done:
                self._add(self._queries, done)

    def _count(self, ended: AttemptEnd) -> None:
        up, down = sum(ended.bytes_up.values()), sum(ended.bytes_down.values())
        self._up += up
        self._down += down
        if not isinstance(ended, ExchangeDone):
            self._lost_up[ended.server_round] += up
            self._lost_down[ended.server_round] += down

    @staticmethod
    def _round(rounds: dict[int, _Round], number: int) -> _Round:
        entry = rounds.setdefault(number, _Round())
        if len(rounds) > MOST_ROUNDS:
            del rounds[next(iter(rounds))]
        return entry

    def _add(self, rounds: dict[int, _Round], done: ExchangeDone) -> None:
        entry = self._round(rounds, done.server_round)
        entry.seconds += done.seconds
        entry.up += sum(done.bytes_up.values())
        entry.down += sum(done.bytes_down.values())
        entry.epsilon = done.epsilon_spent if done.epsilon_spent is not None else entry.epsilon
        if rounds is self._rounds:
            (entry.train if done.trains else entry.evaluate).update(_drawable(done.metrics))
        if done.trains or not entry.has_trained:
            entry.has_trained = done.trains
            entry.survivors = len(done.survivors)
            exchange, cohort = self._cohort
            entry.cohort = cohort if exchange == done.exchange else entry.survivors

    def _all_rounds(self) -> dict[int, _Round]:
        """With what the queries took, in a run whose ServerApp makes figures of nothing else."""
        if not self._rounds or any(one.survivors for one in self._rounds.values()):
            return self._rounds
        rounds = dict(self._queries)
        for number, one in self._rounds.items():
            queries = rounds.get(number, one)
            rounds[number] = replace(queries, train=one.train, evaluate=one.evaluate, server=one.server)
        return rounds

    def describe(self, seq: int) -> RoundsOut:
        """All rounds, in order.

        seq
            Number of the last event that was taken.
        """
        return RoundsOut(
            rounds=[
                RoundOut(
                    round=number,
                    seconds=round(one.seconds, 4),
                    train=one.train,
                    evaluate=one.evaluate,
                    server=one.server,
                    up=one.up + self._lost_up[number],
                    down=one.down + self._lost_down[number],
                    epsilon=one.epsilon,
                    cohort=one.cohort,
                    survivors=one.survivors,
                    dropped=one.cohort - one.survivors,
                )
                for number, one in sorted(self._all_rounds().items())
            ],
            up=self._up,
            down=self._down,
            planned=self._planned,
            privacy=self._privacy,
            promise=self._promise,
            seq=seq,
        )


def _drawable(metrics: dict[str, MetricValue]) -> dict[str, MetricValue | None]:
    """A metric that is no number is None; lists stay as they are if all of them are numbers."""
    return {name: value if _is_number(value) else None for name, value in metrics.items()}


def _is_number(value: MetricValue) -> bool:
    return all(map(math.isfinite, value)) if isinstance(value, list) else math.isfinite(value)
