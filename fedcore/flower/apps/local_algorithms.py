"""Runs a federated algorithm on one client: its second section, its state, and which state the server's sum includes.

What a client keeps moves on with its training, and the server's figures with the sum. An update that is in no sum,
since the client dropped out or its attempt failed, moved the server by nothing, so what was kept with it must not stay:
the mean of all c_i would not be c any more, for the rest of the run. So two states are kept, that before the last
training and that after it, and the next training begins from the one that the sum agrees with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedcore.flower.apps.own_model_store import OwnModelStore, Provenance
from fedcore.flower.apps.personalization import Personalization
from fedcore.flower.apps.tensor_app import LocalJob, LocalResult
from fedcore.state import Layout, ModelState, StateSink
from fedcore.training.algorithms import LocalAlgorithm, make_algorithm
from fedcore.training.engines.transfer import Entry, load_entries, save_entries
from fedcore.wire.base import MetricValue

STRATEGY = "strategy"
"""Of a message's configuration: the strategy that asks something of the clients. It has the name of the run config's
key, so that an owner's client refuses one that the run config does not name."""
CLIENTS_WEIGH_ONE = "clients-weigh-one"
"""Of a message's configuration: whether every client weighs 1 in the mean, whatever its number of examples."""
_SLOTS = ("algorithm-a", "algorithm-b")


@dataclass(slots=True, kw_only=True)
class AlternatingStates:
    """What an algorithm keeps on one client, in two places that take turns.

    aggregated_round: the round of the client's last training whose update was in its sum; None if that is unknown, and
        every training counts, as in Flower's own runtime.
    """

    store: OwnModelStore
    aggregated_round: int | None

    def load(self, layout: Layout) -> ModelState | None:
        """The state that the next training begins from; None for zeros."""
        slot = self._current()
        return None if slot is None else self.store.sibling(slot).load(layout)

    def free(self) -> OwnModelStore:
        """Where the state after a training goes: not over the one that it began from."""
        current = self._current()
        return self.store.sibling(next(slot for slot in _SLOTS if slot != current))

    def _current(self) -> str | None:
        saved = {slot: self.store.sibling(slot).saved_round() for slot in _SLOTS}
        by_round = sorted((number, slot) for slot, number in saved.items() if number is not None)
        if by_round and self.aggregated_round not in (None, by_round[-1][0]):
            by_round.pop()  # its update was in no sum
        return by_round[-1][1] if by_round else None


@dataclass(slots=True, kw_only=True)
class AlgorithmWork:
    """One training under an algorithm: `begin`, the local steps with `algorithm` as their rule, `finish`."""

    algorithm: LocalAlgorithm
    work: Personalization
    states: AlternatingStates

    @classmethod
    def of(cls, job: LocalJob, work: Personalization, store: OwnModelStore) -> AlgorithmWork | None:
        """None if the message asks for no algorithm; raises ConfigurationError for one that cannot work here."""
        name = str(job.message.get(STRATEGY, ""))
        algorithm = make_algorithm(name, work.engine, work.shared, job.message)
        if algorithm is None:
            return None
        return cls(
            algorithm=algorithm, work=work, states=AlternatingStates(store=store, aggregated_round=job.aggregated_round)
        )

    def model_of(self, sent: ModelState | None) -> ModelState | None:
        """The model alone, out of what was sent."""
        names = {entry.spec.name for entry in self.algorithm.section_entries()}
        return sent.only(set(sent) - names) if sent is not None and names else sent

    def begin(self, sent: ModelState | None) -> LocalAlgorithm:
        """The engine holds the model: load the second section, and what is kept; returns the rule of the steps."""
        if section := self.algorithm.section_entries():
            names = {entry.spec.name for entry in section}
            load_entries(section, None if sent is None else sent.only(names), self.work.engine.world)
        if saved := self.algorithm.state_entries():
            self._load(saved)
        self.algorithm.begin()
        return self.algorithm

    def finish(self, server_round: int) -> dict[str, MetricValue]:
        """After the local steps: returns the algorithm's metrics."""
        metrics: dict[str, MetricValue] = dict(self.algorithm.finish())
        if saved := self.algorithm.state_entries():
            engine = self.work.engine
            if engine.world.rank != 0:
                save_entries(saved, None, engine.world)
            else:
                about = Provenance(server_round=server_round, personal=_names(saved), metrics={})
                self.states.free().save(_layout(saved), lambda sink: save_entries(saved, sink, engine.world), about)
        return metrics

    def layout(self) -> Layout:
        """Of what goes to the server: the model, then the second section."""
        return Layout(specs=self.work.layout().specs + _layout(self.algorithm.section_entries()).specs)

    def write(self, sink: StateSink | None) -> None:
        """Write what goes to the server; rank 0 gives the sink."""
        self.work.write(sink)
        save_entries(self.algorithm.section_entries(), sink, self.work.engine.world)

    def _load(self, saved: list[Entry]) -> None:
        """Every rank has to know whether there is anything: rank 0 alone has a store."""
        world = self.work.engine.world
        state = self.states.load(_layout(saved)) if world.rank == 0 else None
        exists = torch.tensor(float(state is not None), device=self.work.engine.device)
        if world.sum(exists) > 0:
            load_entries(saved, state, world)


def weighed(result: LocalResult, message: Mapping[str, Any]) -> LocalResult:
    """The result with the weight that the strategy asks for."""
    return replace(result, examples=1) if message.get(CLIENTS_WEIGH_ONE) else result


def _layout(entries: list[Entry]) -> Layout:
    return Layout(specs=tuple(entry.spec for entry in entries))


def _names(entries: list[Entry]) -> tuple[str, ...]:
    return tuple(entry.spec.name for entry in entries)
