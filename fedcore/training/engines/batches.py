"""Which rank works on which examples, and how they become tensors.

A batch is the examples of one optimizer step, over all ranks: its size and the learning rate mean the same whatever
the number of ranks. The order of the examples is a function of the seed alone. Each data-parallel rank takes one
consecutive share of every batch; shares differ by at most one example. Where each rank has data of its own (`sharded`),
it walks through them at the pace that makes all ranks end with the same step, however uneven they are.

A rank's loss is the sum over its examples divided by `Batch.total`, so that every example of a batch has the same
weight in the gradient, on any rank and in any micro-batch.

`Loaders` reads the examples, from arrays or from a dataset; what can stay warm from round to round does. For a GPU the
next batch is read, pinned and sent while the one before it is worked on (`prefetch`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, cast

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedcore.data.types import Split
from fedcore.errors import ConfigurationError, UsageError
from fedcore.training.engines.transfer import array_view
from fedcore.training.losses import as_features
from fedcore.training.seeds import derive_seed, preserve_generators, seed_generators
from fedcore.training.structures import (
    Structure,
    examples_in_batch,
    moved,
    no_pair,
    pair_in,
    rows_in,
    rows_of,
    split_rows,
    tensors_in,
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's share of a batch.

    x, y: inputs and targets [n, ...]; from a dataset maybe structures of such tensors. What is no pair of them is x
        alone, and y is None.
    total: examples of the batch over all ranks.
    weights: float32 [n], or None for all ones; a rank with no share gets one example of weight 0, since it has to take
        part in the collectives.
    raw: the dict that the DataLoader gave, if it was one.
    size: how many examples this is, None if the targets say so.
    stands_in: whether the one row is such an example of weight 0, of which nothing counts.
    """

    x: Structure
    y: Structure
    total: int
    weights: Tensor | None = None
    raw: Any = None
    size: int | None = None
    stands_in: bool = False

    @classmethod
    def of(cls, content: Any, total: int, weights: Tensor | None = None, *, size: int, stands_in: bool = False) -> Self:
        """Of what a DataLoader gave, on the device."""
        pair = pair_in(content)
        if pair is None:
            return cls(content, None, total, weights, size=size, stands_in=stands_in)
        x, y = pair
        features = as_features(x) if isinstance(x, Tensor) else x
        return cls(features, y, total, weights, content if isinstance(content, Mapping) else None, size, stands_in)

    def __len__(self) -> int:
        return rows_in(self.y) if self.size is None else self.size

    @property
    def content(self) -> Any:
        """What the DataLoader gave: a dict with its targets, a pair, or something else that is a batch."""
        if self.raw is not None:
            return self.raw
        return self.x if self.y is None else (self.x, self.y)

    @property
    def tensors(self) -> list[Tensor]:
        """All that it consists of."""
        return tensors_in((self.content, self.x, self.weights))

    def check(self) -> None:
        """Raise UsageError if it is no pair of inputs and targets with a row for each example."""
        if self.size is None:  # rows that were picked of arrays
            return
        if self.y is None:
            raise no_pair(self.x)
        rows = rows_in((self.x, self.y))
        if rows != self.size:
            raise UsageError(
                f"the dataset's collate_fn made {rows} rows of {self.size} examples: give one row for each",
                check="rows-differ",
            )

    def split(self, count: int) -> list[Batch]:
        """Micro-batches, always `count` of them: the ranks have to do the same number of passes."""
        if count == 1:
            return [self]
        size = examples_in_batch(self.content)
        device = next((tensor.device for tensor in self.tensors), None)
        weights = torch.ones(size, device=device) if self.weights is None else self.weights
        zero = torch.zeros_like(weights[:1])
        one = Batch.of(rows_of(self.content, 0, 1), self.total, zero, size=1, stands_in=True)
        parts = zip(split_rows(self.content, count), torch.tensor_split(weights, count), strict=True)
        own = self.stands_in
        return [Batch.of(part, self.total, w, size=len(w), stands_in=own) if len(w) else one for part, w in parts]


@dataclass(frozen=True, slots=True)
class Rows:
    """One rank's share of a batch, as row numbers.

    empty: this rank has no share; its only row has weight 0.
    """

    rows: Tensor | slice
    total: int
    empty: bool = False


def steps_of(examples: int, *, batch_size: int, epochs: int, steps: int) -> tuple[int, int]:
    """Batch size and number of steps that the settings mean; raises ConfigurationError when they mean nothing.

    Args:
        batch_size: 0 means one full batch.
        epochs, steps: exactly one is positive.
    """
    if (epochs > 0) == (steps > 0) or min(epochs, steps) < 0:
        raise ConfigurationError(f"set either epochs or steps to a positive number (epochs {epochs}, steps {steps})")
    if batch_size < 0:
        raise ConfigurationError(f"batch size cannot be {batch_size}; 0 means one full batch")
    if examples == 0:
        raise ConfigurationError("this client has no examples to train or test on", check="no-examples")
    size = min(batch_size or examples, examples)
    return size, steps or epochs * math.ceil(examples / size)


def shared_rows(examples: int, size: int, steps: int, *, seed: int, rank: int, ranks: int) -> Iterator[Rows]:
    """This rank's rows of `steps` batches of `size`, where every rank can read all examples.

    Every pass over the data has an order of its own. A full batch keeps the order of the data: there it would change
    only rounding, and so a full batch on all data is the pooled gradient step.
    """
    generator = torch.Generator().manual_seed(seed)
    done = 0
    while done < steps:
        order = _order(examples, generator, shuffled=size < examples)
        for number, rows in enumerate(torch.split(order, size)[: steps - done]):
            total = min(size, examples - number * size)
            if ranks == 1:
                yield Rows(slice(None) if size >= examples else rows, total)
                continue
            share = torch.tensor_split(rows, ranks)[rank]
            yield Rows(share, total) if len(share) else Rows(rows[:1], total, empty=True)
        done += math.ceil(examples / size)


def own_rows(counts: Sequence[int], size: int, steps: int, *, seed: int, rank: int) -> Iterator[Rows]:
    """This rank's rows of `steps` batches of `size`, where rank r alone can read its `counts[r]` examples.

    A pass takes every example once. Its batches are consecutive ranges of one sequence, in which the examples of each
    rank are spread evenly: a rank with a third of the examples has about a third of each batch.

    Args:
        seed: has to be another one on each rank, or they go through their data in the same order.
    """
    examples = sum(counts)
    places = torch.cat([(torch.arange(count, dtype=torch.float64) + 0.5) / count for count in counts])
    owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))[places.argsort(stable=True)]
    before = torch.cat([torch.zeros(1, dtype=torch.int64), (owners == rank).cumsum(0)]).tolist()
    generator = torch.Generator().manual_seed(seed)
    done = 0
    while done < steps:
        order = _order(counts[rank], generator, shuffled=size < examples)
        for first in range(0, examples, size)[: steps - done]:
            done += 1
            last = min(first + size, examples)
            start, stop = before[first], before[last]
            total = last - first
            yield Rows(order[start:stop], total) if stop > start else Rows(order[:1], total, empty=True)


def ordered_rows(
    examples: int, size: int, *, rank: int, ranks: int, counts: Sequence[int] | None = None
) -> Iterator[Rows]:
    """This rank's rows of one pass in order, in batches of at most `size`; each rank makes the same number of batches.

    Args:
        counts: examples of each rank where each has its own; otherwise all ranks can read the same `examples`.
    """
    if (sum(counts) if counts is not None else examples) == 0:
        raise ConfigurationError("this client has no examples to train or test on", check="no-examples")
    own = torch.arange(examples) if counts is not None else torch.tensor_split(torch.arange(examples), ranks)[rank]
    longest = max(counts) if counts is not None else math.ceil(examples / ranks)
    for start in range(0, longest, size):
        rows = own[start : start + size]
        yield Rows(rows, len(rows)) if len(rows) else Rows(torch.zeros(1, dtype=torch.int64), 0, empty=True)


def _order(examples: int, generator: torch.Generator, *, shuffled: bool) -> Tensor:
    """Of one pass. A full batch keeps the order of the data, which would change only rounding."""
    return torch.randperm(examples, generator=generator) if shuffled else torch.arange(examples)


TrainingData: TypeAlias = Split | Dataset[Any] | DataLoader[Any] | Iterable[Any]
"""Arrays in memory, or a map-style dataset; its `collate_fn`, if it has one, makes batches of lists of examples. Or a
stream: an iterable of examples, or a DataLoader, whose batches are used as they are (`streams`)."""

_MOST_ARRAYS = 4
"""Data sets whose tensors, or worker processes, are kept: as a rule training and test part of one client."""

_DATA_SHARE = 4
"""Of the memory that a rank may have on a GPU, the part for data sets: the rest is for training."""

_Index = tuple[int, int]
"""Row of an example, and the seed of what is drawn for it."""


class _Order:
    """The places of each batch of the coming round; a loader whose workers stay asks for them again."""

    def __init__(self, examples: int) -> None:
        self.rows: Sequence[Rows] = ()
        self.seed = 0
        self._examples = examples

    def __iter__(self) -> Iterator[list[_Index]]:
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

    def __getitems__(self, indices: list[_Index]) -> list[Any]:
        with preserve_generators():
            return [self._read(*index) for index in indices]

    def _read(self, row: int, seed: int) -> Any:
        seed_generators(seed)
        return self._data[row]


def prefetch(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches, each made before the one ahead of it is worked on; on a GPU in a stream of its own.

    What `batches` asks of the GPU runs during the training: copies from pinned memory, rows picked out of a tensor. A
    batch is used after all of that is done, and its memory is not given to another one before the training has left it.
    """
    side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    if side is not None:  # tensors that lie on the device may still be on their way
        side.wait_stream(torch.cuda.current_stream(device))
    coming = _made(batches, side)
    while coming is not None:
        batch, done = coming
        if done is not None:
            training = torch.cuda.current_stream(device)
            training.wait_event(done)
            for tensor in batch.tensors:
                tensor.record_stream(training)
        coming = _made(batches, side)
        yield batch


def _made(batches: Iterator[Batch], side: torch.cuda.Stream | None) -> tuple[Batch, torch.cuda.Event | None] | None:
    """The next batch, and what to wait for; None after the last one."""
    if side is None:
        batch = next(batches, None)
        return None if batch is None else (batch, None)
    with torch.cuda.stream(side):
        batch = next(batches, None)
        return None if batch is None else (batch, side.record_event())


def room_for_data(device: torch.device, share: float) -> int | None:
    """How many bytes of data sets may stay on a device; None for any number.

    Args:
        share: of its memory, 0 for all of it.
    """
    if device.type != "cuda":
        return None
    memory: int = torch.cuda.get_device_properties(device).total_memory
    return int(memory * (share or 1.0)) // _DATA_SHARE


class Loaders:
    """Makes batches on one device; keeps tensors and loader processes of the data sets that it saw last.

    room: bytes of arrays that may stay on the device; larger ones stay on the host, and are sent batch by batch.
    """

    def __init__(self, device: torch.device, *, room: int | None = None) -> None:
        self._device = device
        self.room = room
        # The data set itself is kept too, so that its id stays its own.
        self._arrays: dict[int, tuple[Split, Tensor, Tensor]] = {}
        self._loaders: dict[tuple[int, int], tuple[Any, _Order, DataLoader[Any]]] = {}

    def batches(self, data: TrainingData, rows: Iterator[Rows], *, workers: int = 0, seed: int = 0) -> Iterator[Batch]:
        """The batches with the given rows; a dataset gives pairs (x, y) of tensors or arrays.

        Args:
            seed: of what a dataset draws at random. With workers, one pass over a dataset ends before the next begins.
        """
        if isinstance(data, Split):
            batches = self._from_device(data, rows) if self._fits(data) else self._from_host(data, rows)
        else:
            batches = self._from_dataset(cast(Dataset[Any], data), list(rows), workers, seed)
        return prefetch(batches, self._device) if self._device.type == "cuda" else batches

    def keeps(self, data: Split) -> bool:
        """Whether the arrays of a data set lie on the device."""
        return id(data) in self._arrays

    def close(self) -> None:
        """End the loader processes."""
        self._loaders.clear()
        self._arrays.clear()

    def _fits(self, data: Split) -> bool:
        """Whether the arrays may stay on the device; others may have to leave it for them."""
        if self.room is None or id(data) in self._arrays:
            return True
        room = self.room - _bytes(data)
        while self._arrays and sum(_bytes(array) for array, _, _ in self._arrays.values()) > room:
            del self._arrays[next(iter(self._arrays))]
        return room >= 0

    def _from_device(self, data: Split, rows: Iterator[Rows]) -> Iterator[Batch]:
        if id(data) not in self._arrays:
            _make_room(self._arrays)
            x, y = (array_view(array).to(self._device) for array in (data.x, data.y))
            self._arrays[id(data)] = (data, x, y)
        _, x, y = self._arrays[id(data)]
        if self._device.type == "cuda":  # this stream may still read them when they are no longer kept
            for tensor in (x, y):
                tensor.record_stream(torch.cuda.current_stream(self._device))
        for part in rows:
            if isinstance(part.rows, slice):  # a model may write into what it gets, and nobody into the data
                own_x, own_y = (t[part.rows].clone(memory_format=torch.contiguous_format) for t in (x, y))
                yield self._batch(as_features(own_x), own_y, part)
            else:
                on_device = self._sent(part.rows)
                yield self._batch(as_features(x.index_select(0, on_device)), y.index_select(0, on_device), part)

    def _from_host(self, data: Split, rows: Iterator[Rows]) -> Iterator[Batch]:
        for part in rows:
            x, y = (self._sent(_picked(array, part.rows)) for array in (data.x, data.y))
            yield self._batch(as_features(x), y, part)

    def _sent(self, tensor: Tensor) -> Tensor:
        """A tensor of the host on the device; the processor does not wait for the copy."""
        if self._device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _from_dataset(self, data: Dataset[Any], rows: list[Rows], workers: int, seed: int) -> Iterator[Batch]:
        order, loader = self._loader(data, workers)
        order.rows, order.seed = rows, seed
        for part, batch in zip(rows, loader, strict=True):  # for a GPU the loader has pinned them
            size = len(data) if isinstance(part.rows, slice) else len(part.rows)  # type: ignore[arg-type]
            weights = torch.zeros(size, device=self._device) if part.empty else None
            yield Batch.of(moved(batch, self._device), part.total, weights, size=size, stands_in=part.empty)

    def _loader(self, data: Dataset[Any], workers: int) -> tuple[_Order, DataLoader[Any]]:
        key = (id(data), workers)
        if key not in self._loaders:
            _make_room(self._loaders)
            order = _Order(len(data))  # type: ignore[arg-type]
            loader = DataLoader(
                _Seeded(data),
                batch_sampler=order,
                collate_fn=getattr(data, "collate_fn", None),
                # The loader draws a seed of its own for each pass: not from the generator of the training.
                generator=torch.Generator(),
                num_workers=workers,
                persistent_workers=workers > 0,
                pin_memory=self._device.type == "cuda",
            )
            self._loaders[key] = (data, order, loader)
        _, order, loader = self._loaders[key]
        return order, loader

    def _batch(self, x: Structure, y: Structure, part: Rows) -> Batch:
        weights = torch.zeros(rows_in(y), device=self._device) if part.empty else None
        return Batch(x, y, part.total, weights, stands_in=part.empty)


def _picked(array: NDArray[Any], rows: Tensor | slice) -> Tensor:
    """Rows of an array, in memory of their own: what comes from a file can only be read."""
    return torch.tensor(array[rows]) if isinstance(rows, slice) else torch.from_numpy(array[rows.numpy()])


def _bytes(data: Split) -> int:
    return int(data.x.nbytes + data.y.nbytes)


def _make_room(arrays: dict[Any, Any]) -> None:
    if len(arrays) >= _MOST_ARRAYS:
        del arrays[next(iter(arrays))]
