"""Batches from arrays or from a dataset, with what can stay warm from round to round kept warm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedcore.data.types import Split
from fedcore.training.engines.batches import Batch, Rows
from fedcore.training.losses import as_features
from fedcore.training.seeds import derive_seed, generators_kept, seed_generators

TrainingData: TypeAlias = Split | Dataset[tuple[Tensor, Tensor]]
"""Arrays in memory, or a map-style dataset of pairs (x, y)."""

_KEPT = 4
"""Data sets whose tensors, or worker processes, are kept: as a rule training and test part of one client."""

_Place = tuple[int, int]
"""Row of an example, and the seed of what is drawn for it."""


class _Order:
    """The places of each batch of the coming round; a loader whose workers stay asks for them anew."""

    def __init__(self, examples: int) -> None:
        self.rows: Sequence[Rows] = ()
        self.seed = 0
        self._examples = examples

    def __iter__(self) -> Iterator[list[_Place]]:
        for step, part in enumerate(self.rows):
            rows = range(self._examples) if isinstance(part.rows, slice) else part.rows.tolist()
            yield [(row, derive_seed("example", self.seed, step, row)) for row in rows]


class _Seeded(Dataset[Any]):
    """A dataset whose random augmentation depends on seed, step and row alone, whatever process reads the example.

    A worker that stays would otherwise draw on from where the last round left it. To keep the generators as they were
    costs more than an example, so that it is done once for a batch.
    """

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __getitems__(self, places: list[_Place]) -> list[Any]:
        with generators_kept():
            return [self._read(*place) for place in places]

    def _read(self, row: int, seed: int) -> Any:
        seed_generators(seed)
        return self._data[row]


class Loaders:
    """Makes batches on one device; keeps tensors and loader processes of the data sets that it saw last."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # The data set itself is kept too, so that its id stays its own.
        self._arrays: dict[int, tuple[Split, Tensor, Tensor]] = {}
        self._loaders: dict[tuple[int, int], tuple[Any, _Order, DataLoader[Any]]] = {}

    def batches(self, data: TrainingData, rows: Iterator[Rows], *, workers: int = 0, seed: int = 0) -> Iterator[Batch]:
        """The batches with the given rows; a dataset gives pairs (x, y) of tensors or arrays.

        seed: of what a dataset draws at random. With workers, one pass over a dataset ends before the next begins.
        """
        if isinstance(data, Split):
            return self._from_arrays(data, rows)
        return self._from_dataset(data, list(rows), workers, seed)

    def close(self) -> None:
        """End the loader processes."""
        self._loaders.clear()
        self._arrays.clear()

    def _from_arrays(self, data: Split, rows: Iterator[Rows]) -> Iterator[Batch]:
        if id(data) not in self._arrays:
            _make_room(self._arrays)
            # torch.tensor copies: arrays that came from a file are read-only, tensors never are.
            x, y = torch.tensor(data.x, device=self._device), torch.tensor(data.y, device=self._device)
            self._arrays[id(data)] = (data, x, y)
        _, x, y = self._arrays[id(data)]
        for part in rows:
            yield self._batch(as_features(x[part.rows]), y[part.rows], part)

    def _from_dataset(self, data: Dataset[Any], rows: list[Rows], workers: int, seed: int) -> Iterator[Batch]:
        order, loader = self._loader(data, workers)
        order.rows, order.seed = rows, seed
        for part, (x, y) in zip(rows, loader, strict=True):
            there = [tensor.to(self._device, non_blocking=True) for tensor in (x, y)]
            yield self._batch(as_features(there[0]), there[1], part)

    def _loader(self, data: Dataset[Any], workers: int) -> tuple[_Order, DataLoader[Any]]:
        key = (id(data), workers)
        if key not in self._loaders:
            _make_room(self._loaders)
            order = _Order(len(data))  # type: ignore[arg-type]
            loader = DataLoader(
                _Seeded(data),
                batch_sampler=order,
                # The loader draws a seed of its own for each pass: not from the generator of the training.
                generator=torch.Generator(),
                num_workers=workers,
                persistent_workers=workers > 0,
                pin_memory=self._device.type == "cuda",
            )
            self._loaders[key] = (data, order, loader)
        _, order, loader = self._loaders[key]
        return order, loader

    def _batch(self, x: Tensor, y: Tensor, part: Rows) -> Batch:
        return Batch(x, y, part.total, torch.zeros(len(y), device=self._device) if part.empty else None)


def _make_room(kept: dict[Any, Any]) -> None:
    if len(kept) >= _KEPT:
        del kept[next(iter(kept))]
