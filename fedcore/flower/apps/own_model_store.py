"""Stores of a client's own model between rounds: in Flower's Context, or in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, cast

from flwr.app import ConfigRecord, Context

from fedcore.flower.records import arrays_from_state, state_from_arrays
from fedcore.state import Layout, MemorySink, ModelState, OwnModelFolder, OwnModelRecord, StateSink
from fedcore.wire.base import MetricValue

_RECORD = "fedcore.local-model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What there is to say about a model that is kept.

    server_round: whose global model is in it.
    personal: names of the tensors that never leave the client.
    """

    server_round: int
    personal: tuple[str, ...]
    metrics: dict[str, MetricValue]


class OwnModelStore(Protocol):
    """Keeps one model for one client."""

    def load(self, layout: Layout) -> ModelState | None:
        """What was saved last, or None; raises ConfigurationError if that has another layout."""

    def save(self, layout: Layout, write: Callable[[StateSink], None], about: Provenance) -> None:
        """Keep what `write` writes in place of what was kept before."""

    def saved_round(self) -> int | None:
        """The round of what was saved last in this run; None if nothing was."""

    def sibling(self, name: str) -> OwnModelStore:
        """Another store of the same client, for something else."""


class ContextStore:
    """In the node's Flower Context: kept as long as the run and this process last."""

    def __init__(self, context: Context, name: str = "") -> None:
        self._context = context
        self._record = f"{_RECORD}.{name}" if name else _RECORD
        self._round = f"{self._record}.round"

    def load(self, layout: Layout) -> ModelState | None:
        record = self._context.state.array_records.get(self._record)
        if record is None:
            return None
        state = state_from_arrays(record)
        layout.check_same(state.layout, what="the client's own model")
        return state

    def save(self, layout: Layout, write: Callable[[StateSink], None], about: Provenance) -> None:
        sink = MemorySink(layout)
        write(sink)
        self._context.state[self._record] = arrays_from_state(sink.state())
        self._context.state[self._round] = ConfigRecord({"server-round": about.server_round})

    def saved_round(self) -> int | None:
        record = self._context.state.config_records.get(self._round)
        return None if record is None else cast(int, record["server-round"])

    def sibling(self, name: str) -> ContextStore:
        return ContextStore(self._context, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderStore:
    """In the client's own folder: survives the process and the run, and can be exported."""

    store: OwnModelFolder
    run: str
    app_sha256: str

    def load(self, layout: Layout) -> ModelState | None:
        model = self.store.load(app_sha256=self.app_sha256, layout=layout)
        return None if model is None else model.state

    def save(self, layout: Layout, write: Callable[[StateSink], None], about: Provenance) -> None:
        record = OwnModelRecord(
            run=self.run,
            server_round=about.server_round,
            app_sha256=self.app_sha256,
            personal=about.personal,
            metrics=about.metrics,
        )
        self.store.write(layout, write, record)

    def saved_round(self) -> int | None:
        model = self.store.load()
        return model.record.server_round if model is not None and model.record.run == self.run else None

    def sibling(self, name: str) -> FolderStore:
        return replace(self, store=OwnModelFolder(self.store.folder / name))
