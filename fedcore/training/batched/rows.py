"""Batches of several clients, step by step, each client's own as the loop of one client would draw them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.types import Split
from fedcore.errors import UsageError
from fedcore.training.engines.batches import shared_rows
from fedcore.training.loop import TrainingPlan
from fedcore.training.losses import as_features


@dataclass(frozen=True, slots=True)
class StackedBatch:
    """One step's batches of the first k clients.

    x, y: inputs and targets [k, n, ...].
    totals: examples of each client's own batch, float64 [k].
    weights: float32 [k, n], 1 for these and 0 for what fills up the shorter batches; None if all are equally long.
    """

    x: Tensor
    y: Tensor
    totals: Tensor
    weights: Tensor | None


class StackedBatches:
    """All batches of some clients' training.

    steps: of each client.

    plans: of clients with arrays of the same shape and dtype but for their number, those with more steps first, so that
        the clients of any step are the first ones.
    padding: examples of weight 0 that are added to every batch. What fills up a batch is its own first example:
        whatever the model makes of it, it makes anyway.
    """

    def __init__(self, plans: Sequence[TrainingPlan], device: torch.device, *, padding: int = 0) -> None:
        splits = [arrays_of(plan) for plan in plans]
        rows = [_rows(plan) for plan in plans]
        self.steps = [len(own) for own in rows]
        if sorted(self.steps, reverse=True) != self.steps:
            raise UsageError("clients with more steps come first", check="steps-order")
        self._padding = padding
        self._x = torch.cat([torch.tensor(split.x, device=device) for split in splits])
        self._y = torch.cat([torch.tensor(split.y, device=device) for split in splits])
        starts = np.cumsum([0, *(len(split) for split in splits)])
        table, self._lengths = _table(rows, starts, padding)
        self._table = torch.from_numpy(table).to(device)

    def __iter__(self) -> Iterator[StackedBatch]:
        device = self._x.device
        for step in range(max(self.steps)):
            clients = sum(steps > step for steps in self.steps)
            lengths = self._lengths[step, :clients]
            width = int(lengths.max()) + self._padding
            rows = self._table[step, :clients, :width]
            weights = None
            if int(lengths.min()) < width:
                weights = torch.from_numpy((np.arange(width) < lengths[:, None]).astype(np.float32)).to(device)
            totals = torch.from_numpy(lengths.astype(np.float64)).to(device)
            yield StackedBatch(as_features(self._x[rows]), self._y[rows], totals, weights)


def arrays_of(plan: TrainingPlan) -> Split:
    """The arrays that a plan trains on; raises UsageError for a data set that is read example by example."""
    if not isinstance(plan.data, Split):
        raise UsageError("only examples in arrays are trained on at once")
    return plan.data


def _rows(plan: TrainingPlan) -> list[NDArray[np.int64]]:
    """The row numbers of every batch."""
    examples = len(arrays_of(plan))
    size, steps = plan.batches
    everything = np.arange(examples)
    parts = shared_rows(examples, size, steps, seed=plan.seed, rank=0, ranks=1)
    return [everything if isinstance(part.rows, slice) else part.rows.numpy() for part in parts]


def _table(
    rows: Sequence[Sequence[NDArray[np.int64]]], starts: NDArray[np.int64], padding: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places among all clients' examples, [steps, clients, longest batch], and lengths of batches [steps, clients]."""
    steps = max(len(own) for own in rows)
    width = max(len(batch) for own in rows for batch in own) + padding
    table = np.zeros((steps, len(rows), width), np.int64)
    lengths = np.zeros((steps, len(rows)), np.int64)
    for client, own in enumerate(rows):
        for step, batch in enumerate(own):
            table[step, client] = starts[client] + batch[0]
            table[step, client, : len(batch)] = starts[client] + batch
            lengths[step, client] = len(batch)
    return table, lengths
