"""Whose updates are in a sum: read from the models before and after it, whatever strategy made the second.

Client i adds 4**(i-1) steps to every element, so the digits of a sum, to the base of four, say whose updates are in it
and how often. A strategy turns the mean into a model in ways that nobody inverts; so it is asked for the models of all
sums that there can be, and the one that came out is that of a single sum.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, Metadata, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from benchmarks.chaos_clients import STEP
from benchmarks.common import APPS
from fedcore.flower.loading import load_object
from fedcore.flower.records import message_from

APP: Final = APPS / "chaos"
BASE: Final = 4
_NAME: Final = "digits"
_HEAD: Final = Metadata(
    run_id=1, message_id="", src_node_id=2, dst_node_id=1, reply_to_message_id="", group_id="", created_at=0.0, ttl=1.0,
    message_type="train",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sum:
    """What one sum holds.

    digits: how often each client's update is in it.
    spread: how far an element is from what these digits make of it at most, over the distance to the next sum's.
    """

    digits: tuple[int, ...]
    spread: float


class Reader:
    """Reads the sums of one run, in their order; it keeps the strategy's state, momentum among it."""

    def __init__(self, strategy: str, clients: int) -> None:
        self._strategy: Any = load_object(APP, "chaos_app.server_app:STRATEGIES", dict)[strategy]()
        assert isinstance(self._strategy, FedAvg)
        self._clients = clients

    def read(self, server_round: int, before: bytes, after: bytes, survivors: int) -> Sum:
        """The sum of `survivors` updates that made one model of the other; the values of both are float32."""
        old, new = (np.frombuffer(values, np.float32) for values in (before, after))
        middle = np.array([np.median(old)], np.float32)
        sums = np.arange(BASE**self._clients)
        models = self._models(copy.deepcopy(self._strategy), server_round, middle, sums, survivors)
        moves, moved = models - middle, new.astype(np.float64) - old
        best = int(np.abs(moves - np.median(moved)).argmin())
        self.step(server_round, middle, sums[best : best + 1], survivors)
        gap = min(abs(moves[best] - moves[one]) for one in (best - 1, best + 1) if 0 <= one < len(moves))
        spread = float(np.abs(moved - moves[best]).max() / gap) if gap else float("inf")
        return Sum(digits=_digits(best, self._clients), spread=spread)

    def assume(self, server_round: int, survivors: Sequence[int]) -> None:
        """Go on past a sum, of which one of the two models is not known, as if it held what it should."""
        total = np.array([sum(BASE ** (client - 1) for client in survivors)])
        self.step(server_round, np.zeros(1, np.float32), total, len(survivors))

    def step(self, server_round: int, before: NDArray[Any], total: NDArray[Any], survivors: int) -> NDArray[np.float64]:
        """The model, `[1]`, that the strategy makes of one, `[1]`, by a sum of so many steps, `[1]`."""
        return self._models(self._strategy, server_round, before, total, survivors)

    def _models(
        self, strategy: Any, server_round: int, before: NDArray[Any], sums: NDArray[Any], survivors: int
    ) -> NDArray[np.float64]:
        """The models that a strategy makes of these sums, `[sums]`, each from the same model, `[1]`."""
        old = np.repeat(before, len(sums))
        if hasattr(strategy, "current_arrays"):  # what `configure_train` would note
            is_record = hasattr(strategy, "server_momentum")
            strategy.current_arrays = _record(old) if is_record else {_NAME: old}
        mean = old + (sums * STEP / survivors).astype(np.float32)
        content = RecordDict({"arrays": _record(mean), "metrics": MetricRecord({"num-examples": 1})})
        reply = message_from(content, _HEAD)
        arrays, _ = strategy.aggregate_train(server_round, [reply])
        model: NDArray[np.float64] = arrays[_NAME].numpy().astype(np.float64)
        return model


def _record(values: NDArray[Any]) -> ArrayRecord:
    return ArrayRecord({_NAME: Array(values)})


def _digits(total: int, clients: int) -> tuple[int, ...]:
    """The lowest first."""
    return tuple(total // BASE**place % BASE for place in range(clients))
