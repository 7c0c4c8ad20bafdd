"""Figures that a strategy computes from the replies, reported during the run: an AUC from sums, `evaluate_fn`.

Flower's loops collect it in a Result or a History that they return at the end. The grid is asked again and again until
then, so it looks there each time and reports what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flwr.app import Message
from flwr.server import History
from flwr.serverapp.strategy import Result

from fedcore.flower.results import results_of
from fedcore.wire.events import FiguresFound

_MOST_ENTRIES: Final = 1024
_MOST_NAMES: Final = 256


@dataclass(slots=True)
class NewFigures:
    """Remembers what was reported, and what the replies themselves said: their means are known without the strategy."""

    _reported: set[tuple[str, int]] = field(default_factory=set)
    _means: dict[str, dict[str, Any]] = field(default_factory=dict)

    def note(self, replies: list[Message]) -> None:
        """Replies that go to the strategy.

        Of several replies the mean is known to the server or simulator that ran the exchange.
        """
        for reply in replies:
            if reply.has_error():
                continue
            means = self._means.setdefault(reply.metadata.message_type.partition(".")[0], {})
            for record in reply.content.metric_records.values():
                means.update(dict(record) if len(replies) == 1 else dict.fromkeys(record, None))

    def of(self, result: Result | History | None) -> Iterator[FiguresFound]:
        """What is new in what a strategy has found so far."""
        for source, rounds in results_of(result).items():
            for number, metrics in rounds.items():
                if (source, int(number)) in self._reported:
                    continue
                self._reported.add((source, int(number)))
                if more := self._beyond_means(source, metrics):
                    yield FiguresFound(server_round=int(number), source=source, metrics=more)

    def _beyond_means(self, source: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
        means = self._means.get(source, {})
        numbers = {name: value for name, value in metrics.items() if _is_figure(value)}
        more = {name: value for name, value in numbers.items() if name not in means or means[name] not in (None, value)}
        return dict(list(more.items())[:_MOST_NAMES])


def _is_figure(value: Any) -> bool:
    """A number or a list of numbers that is no model; Flower's legacy API lets an app report anything."""
    if isinstance(value, list):
        return len(value) <= _MOST_ENTRIES and all(_is_figure(entry) and not isinstance(entry, list) for entry in value)
    return isinstance(value, int | float) and not isinstance(value, bool)
