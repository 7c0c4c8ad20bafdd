"""The figures that trackers get, out of the events of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fedcore.wire.events import AttemptEnd, ClientDropped, ExchangeDone, FiguresFound, RunEvent
from fedcore.wire.tasks import is_query

_MOST_ENTRIES: Final = 16
"""Of a metric that is a list; longer ones, such as histograms, are no curves."""


@dataclass(slots=True)
class Figures:
    """Folds events into figures by round; traffic is that of the run so far, over all clients."""

    up: int = 0
    down: int = 0
    dropped: int = 0

    def of(self, event: RunEvent) -> tuple[int, dict[str, float]] | None:
        """(round, figures by name), None for an event that brings none. Queries are no rounds."""
        if isinstance(event, FiguresFound):
            return event.server_round, {f"app/{event.source}/{name}": value for name, value in numbers(event.metrics)}
        if isinstance(event, ClientDropped):
            self.dropped += 1
        if isinstance(event, AttemptEnd):
            self.up += sum(event.bytes_up.values())
            self.down += sum(event.bytes_down.values())
        if not isinstance(event, ExchangeDone):
            return None
        dropped, self.dropped = self.dropped, 0
        if is_query(event.message_type):
            return None
        kind = "train" if event.trains else "evaluate"
        values = {f"{kind}/{name}": value for name, value in numbers(event.metrics)}
        values |= {f"{kind}/seconds": event.seconds, f"{kind}/clients": len(event.survivors)}
        values |= {f"{kind}/dropped": dropped, f"{kind}/contributed_nothing": event.failures}
        values |= {"traffic/bytes_up": self.up, "traffic/bytes_down": self.down}
        if event.epsilon_spent is not None:
            values["privacy/epsilon"] = event.epsilon_spent
        return event.server_round, values


def numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Metrics as single numbers; short lists by place, everything else left out."""
    for name, value in metrics.items():
        if isinstance(value, int | float):
            yield name, float(value)
        elif isinstance(value, list) and len(value) <= _MOST_ENTRIES:
            yield from numbers({f"{name}/{index}": entry for index, entry in enumerate(value)})
