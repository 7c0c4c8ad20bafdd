"""What the workers of a baseline did, round by round, from what they report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import mean
from typing import Any

from fedcore.compare.results import Loss

Report = Mapping[str, Any]
"""The data of an event `fedcore.compare.training.ROUND` or READY."""


@dataclass(slots=True, kw_only=True)
class Account:
    """What has been reported up to now. A round is whole when every worker that was not lost has reported it.

    names: the workers, in the order of their sites. ready: what each said before its first round. rounds: the whole
    rounds, each by worker. evaluated: by round, where a worker evaluates the model itself. reason: why the run ended
    before its time, empty where it did not.
    """

    names: tuple[str, ...]
    ready: dict[str, Report] = field(default_factory=dict)
    rounds: list[dict[str, Report]] = field(default_factory=list)
    evaluated: dict[int, Report] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    reason: str = ""
    _open: dict[int, dict[str, Report]] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    def last_round(self, name: str) -> int:
        """The last round that a worker has reported, 0 for none."""
        return self._last.get(name, 0)

    def add(self, name: str, report: Report) -> None:
        """Take a worker's report of a round."""
        self._last[name] = report["round"]
        self._open.setdefault(report["round"], {})[name] = report

    def close_rounds(self) -> Iterator[int]:
        """The rounds that have become whole, numbered from 1 on."""
        while reports := self._open.get(len(self.rounds) + 1):
            if not reports.keys() | self.lost >= set(self.names):
                return
            self.rounds.append(reports)
            yield len(self.rounds)

    def counts(self) -> tuple[int, ...]:
        """Training examples of each site."""
        return tuple(count for name in self.names if name in self.ready for count in self.ready[name]["counts"])

    def steps(self) -> dict[str, int]:
        """Optimizer steps of each worker in all whole rounds."""
        return self._total("steps", start=dict.fromkeys(self.names, 0))

    def samples(self) -> list[int]:
        """Examples that all workers have taken up to the end of each round."""
        return list(accumulate(sum(report["samples"] for report in reports.values()) for reports in self.rounds))

    def seconds(self) -> list[float]:
        """Of training, up to the end of each round: that of its slowest worker."""
        return list(accumulate(max(report["seconds"] for report in reports.values()) for reports in self.rounds))

    def train_loss(self, number: int) -> float:
        """Mean loss of the examples of a round, each before the step that it was used for."""
        reports = self.rounds[number - 1].values()
        loss: float = sum(report["loss"] for report in reports)
        samples: int = sum(report["samples"] for report in reports)
        return loss / max(1, samples)

    def bytes_of(self, way: str) -> dict[str, int]:
        """Bytes "sent" or "received" by each worker, with what it got before the first round."""
        return self._total(way, start={name: self._before(name, way) for name in self.names})

    def mean_bytes(self, way: str) -> list[float]:
        """The same up to the end of each round, mean over the workers."""
        start = mean(self._before(name, way) for name in self.names)
        each = (sum(report[way] for report in reports.values()) / len(self.names) for reports in self.rounds)
        return [start + total for total in accumulate(each)]

    def sent_for_each(self, occasions: int) -> float:
        """Bytes that one worker sent for each of so many occasions; without the first model."""
        sent: int = sum(report["sent"] for reports in self.rounds for report in reports.values())
        return sent / len(self.names) / max(1, occasions)

    def _before(self, name: str, way: str) -> int:
        return int(self.ready[name][way]) if name in self.ready else 0

    def _total(self, key: str, *, start: Mapping[str, int]) -> dict[str, int]:
        totals = dict(start)
        for reports in self.rounds:
            for name, report in reports.items():
                totals[name] += int(report[key])
        return totals
