"""What of a model stays on the client, and how the global and the personal model take turns on one engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from fedcore.errors import ConfigurationError
from fedcore.flower.keeping import Kept, Store
from fedcore.flower.result import Write
from fedcore.state import Layout, MemorySink, ModelState
from fedcore.training.adapters import adapter_names
from fedcore.training.engines import Engine, Proximal
from fedcore.training.engines.transfer import Entry, load_entries, save_entries
from fedcore.training.personal import personal_names
from fedcore.wire import MetricValue

PREFIX = "personal_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Personal:
    """What stays on the client.

    patterns: names of parameters and buffers, with * and ?, that never leave it and are never overwritten, such as the
    head (FedPer, Arivazhagan et al. 2019). batch_norm: the same for all layers of batch normalisation (FedBN, Li et al.
    2021).
    keep_model: keep the model as it was after the local training, fine-tuned, for use on the client.
    ditto: strength of the pull of a second, personal model towards the global one (Ditto, Li et al. 2021); 0 for none.
    """

    patterns: tuple[str, ...] = ()
    batch_norm: bool = False
    keep_model: bool = False
    ditto: float = 0.0

    def __post_init__(self) -> None:
        if self.ditto < 0:
            raise ConfigurationError(f"the pull of ditto cannot be {self.ditto}")
        if self.ditto and (self.parts or self.keep_model):
            raise ConfigurationError("ditto keeps a whole personal model; it goes with no other way of keeping one")

    @property
    def parts(self) -> bool:
        """Whether some tensors stay on the client."""
        return bool(self.patterns) or self.batch_norm

    @property
    def whole(self) -> bool:
        """Whether the client keeps a whole model beside the global one."""
        return self.keep_model or self.ditto > 0


@dataclass(slots=True, kw_only=True)
class Personalization:
    """Carries out a `Personal` on one engine.

    own: names of the tensors that stay. frozen: names of those that never change and are the same everywhere. initial:
    the values of the client's own when the engine was made, for one that has kept nothing yet. averaged: whether the
    optimizer's state is part of what the server holds.
    """

    personal: Personal
    own: frozenset[str]
    frozen: frozenset[str]
    initial: ModelState | None
    averaged: bool

    @classmethod
    def of(cls, personal: Personal, engine: Engine, *, averaged: bool, adapter: bool) -> Self:
        """Raises ConfigurationError for patterns that match nothing or all, and for an adapter that is all or none."""
        own: frozenset[str] = frozenset()
        if personal.parts:
            with torch.device("meta"):  # the whole model, of which a rank may hold a part only, for its names
                own = frozenset(
                    personal_names(engine.recipe.build(), personal.patterns, batch_norm=personal.batch_norm)
                )
        frozen: frozenset[str] = frozenset()
        if adapter:
            frozen = frozenset(entry.spec.name for entry in engine.entries()) - set(adapter_names(engine.module))
        made = cls(personal=personal, own=own, frozen=frozen, initial=None, averaged=averaged)
        if own:
            entries = made._own_entries(engine)
            sink = MemorySink(_layout(entries)) if engine.world.rank == 0 else None
            save_entries(entries, sink, engine.world)
            made.initial = sink.state() if sink is not None else None
        return made

    def prepare(
        self,
        engine: Engine,
        model: ModelState | None,
        store: Store,
        server_round: int,
        fit: Callable[[Proximal], Mapping[str, MetricValue]],
    ) -> None:
        """Put the model that is to be trained into the engine; with ditto, train the personal one with `fit` first."""
        if self.personal.ditto:
            self._load_shared(engine, model)
            anchor = engine.snapshot()
            kept = self._kept(engine, store)
            if kept.exists:
                load_entries(self._whole_entries(engine), kept.state, engine.world)
            metrics = fit(Proximal(mu=self.personal.ditto, anchor=anchor))
            self._save(engine, store, server_round, metrics)
        self._receive(engine, model, store)

    def keep(self, engine: Engine, store: Store, server_round: int, metrics: Mapping[str, MetricValue]) -> None:
        """After the training: keep what stays."""
        if self.own or self.personal.keep_model:
            self._save(engine, store, server_round, metrics)

    def shared(self, engine: Engine) -> tuple[Layout, Write]:
        """What goes to the server: its layout, and what writes it."""
        entries = self._shared_entries(engine)
        return _layout(entries), partial(save_entries, entries, world=engine.world)

    def evaluate(
        self, engine: Engine, model: ModelState | None, store: Store, test: Callable[[], Mapping[str, MetricValue]]
    ) -> dict[str, MetricValue]:
        """The metrics of the global model, and of the personal one beside them where the client keeps a whole one."""
        self._receive(engine, model, store)
        metrics = dict(test())
        if not self.personal.whole:
            return metrics
        kept = self._kept(engine, store)
        if kept.exists:
            load_entries(self._whole_entries(engine), kept.state, engine.world)
        own = test() if kept.exists else metrics
        return metrics | {f"{PREFIX}{name}": value for name, value in own.items() if name != "num-examples"}

    # --- which tensors --------------------------------------------------------------------------------------------

    def _shared_entries(self, engine: Engine) -> list[Entry]:
        return [entry for entry in engine.entries() if entry.spec.name not in self.own | self.frozen]

    def _own_entries(self, engine: Engine) -> list[Entry]:
        return [entry for entry in engine.entries() if entry.spec.name in self.own]

    def _whole_entries(self, engine: Engine) -> list[Entry]:
        return engine.entries()

    # --- in and out -----------------------------------------------------------------------------------------------

    def _load_shared(self, engine: Engine, model: ModelState | None) -> None:
        load_entries(self._shared_entries(engine), model, engine.world)

    def _receive(self, engine: Engine, model: ModelState | None, store: Store) -> None:
        """The global tensors from the server, the client's own from its store."""
        self._load_shared(engine, model)
        if self.own:
            kept = self._kept(engine, store)
            entries = self._own_entries(engine)
            source = _part(kept.state, entries) if kept.exists else self.initial
            load_entries(entries, source, engine.world)

    def _kept(self, engine: Engine, store: Store) -> _Found:
        """What the store has; rank 0 decides, since another machine has none."""
        state = store.load(_layout(self._whole_entries(engine))) if engine.world.rank == 0 else None
        exists = torch.tensor(float(state is not None), device=engine.device)
        return _Found(bool(engine.world.sum(exists) > 0), state)

    def _save(self, engine: Engine, store: Store, server_round: int, metrics: Mapping[str, MetricValue]) -> None:
        entries = self._whole_entries(engine)
        if engine.world.rank == 0:
            own = tuple(entry.spec.name for entry in entries if self.personal.whole or entry.spec.name in self.own)
            about = Kept(server_round=server_round, personal=own, metrics=dict(metrics))
            store.save(_layout(entries), partial(save_entries, entries, world=engine.world), about)
        else:
            save_entries(entries, None, engine.world)


@dataclass(frozen=True, slots=True)
class _Found:
    exists: bool
    state: ModelState | None


def _layout(entries: list[Entry]) -> Layout:
    return Layout(specs=tuple(entry.spec for entry in entries))


def _part(state: ModelState | None, entries: list[Entry]) -> ModelState | None:
    """The tensors of `entries` out of a whole state."""
    if state is None:
        return None
    return ModelState(_layout(entries), {entry.spec.name: state[entry.spec.name] for entry in entries})
