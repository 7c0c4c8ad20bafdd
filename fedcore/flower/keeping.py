"""Where a client's own model stays between rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flwr.app import Context

from fedcore.flower.records import arrays_from_state, state_from_arrays
from fedcore.state import Layout, MemorySink, ModelState, StateSink

_RECORD = "fedcore.local-model"


class Store(Protocol):
    """Keeps one model for one client."""

    def load(self) -> ModelState | None:
        """What was saved last, or None."""

    def save(self, layout: Layout, write: Callable[[StateSink], None], about: Mapping[str, Any]) -> None:
        """Keep what `write` writes, and what there is to say about it, in place of what was kept before."""


class ContextStore:
    """In the node's Flower Context: lives as long as the run and this process do."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def load(self) -> ModelState | None:
        record = self._context.state.array_records.get(_RECORD)
        return None if record is None else state_from_arrays(record)

    def save(self, layout: Layout, write: Callable[[StateSink], None], about: Mapping[str, Any]) -> None:
        sink = MemorySink(layout)
        write(sink)
        self._context.state[_RECORD] = arrays_from_state(sink.state())
