"""Data whose rows nobody can pick: an iterable of examples or of batches, and a DataLoader with a sampler of its own.

Every rank reads the same stream, and takes its consecutive share of each batch, as of any other data; where each rank
has a stream of its own (`sharded`) its part of each batch is what it reads, and the ranks agree on how many that are.
What a stream draws at random comes from the seed alone, so that all ranks that read one draw the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from fedcore.data.types import Split
from fedcore.errors import ConfigurationError, DataError
from fedcore.training.engines.batches import Batch, TrainingData
from fedcore.training.seeds import derive_seed, preserve_generators, seed_generators
from fedcore.training.structures import examples_in_batch, moved, rows_of

T = TypeVar("T")


class DataRanks(Protocol):
    """What an engine says of the ranks that get different examples; see there."""

    @property
    def device(self) -> torch.device: ...
    @property
    def data_rank(self) -> int: ...
    @property
    def data_size(self) -> int: ...
    def total(self, values: Tensor) -> Tensor: ...


def is_loader(data: Any) -> bool:
    """Whether it is a DataLoader."""
    return isinstance(data, DataLoader)


def is_stream(data: TrainingData) -> bool:
    """Whether it is read from front to back; of other data rows are picked."""
    if isinstance(data, Split):
        return False
    return isinstance(data, DataLoader | IterableDataset) or not hasattr(data, "__getitem__")


def examples_in(data: Any) -> int | None:
    """How many examples there are, None for a stream that does not say."""
    source: Any = data.dataset if isinstance(data, DataLoader) else data
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def rows_to_pick(data: Any) -> int:
    """How many examples there are to pick rows from; raises ConfigurationError for data without rows."""
    number = None if is_stream(data) else examples_in(data)
    if number is None:
        raise ConfigurationError(
            f"rows cannot be picked from a {type(data).__name__}, which is read from front to back; give arrays or a "
            "dataset with __len__ and __getitem__",
            check="no-rows",
        )
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """How a stream is read.

    batch_size: examples of one step over all ranks; 0 if its items are batches.
    epochs, steps: one of them is positive, the other 0.
    seed: of what the stream draws at random.
    sharded: each rank has a stream of its own.
    """

    batch_size: int
    epochs: int = 0
    steps: int = 0
    seed: int = 0
    sharded: bool = False

    def check(self, data: TrainingData, workers: int) -> None:
        """Raise ConfigurationError for settings that mean nothing with this data."""
        if (self.epochs > 0) == (self.steps > 0) or min(self.epochs, self.steps, self.batch_size) < 0:
            raise ConfigurationError(
                f"set either epochs or steps to a positive number (epochs {self.epochs}, steps {self.steps}), and a "
                f"batch size that is not negative ({self.batch_size})"
            )
        if workers:
            raise ConfigurationError(
                f"workers = {workers} is for data whose rows can be picked; a stream is read by this process: give a "
                "DataLoader with num_workers instead",
                check="stream-workers",
            )
        if self.epochs and examples_in(data) is None:
            raise ConfigurationError(
                f"{self.epochs} epochs are asked of a {type(data).__name__} without a length (__len__): set steps "
                "instead (local-steps, and local-epochs = 0)",
                check="no-length",
            )
        own = data.batch_size if isinstance(data, DataLoader) else self.batch_size
        if self.batch_size and self.batch_size != own:
            made = "by a sampler of its own" if own is None else f"of {own}"
            raise ConfigurationError(
                f"the DataLoader makes batches {made}, and the batch size is {self.batch_size}: set it to "
                f"{own or 0}" + ("" if own is None else ", or to 0 for batches as they come"),
                check="batch-size-differs",
            )


@dataclass(frozen=True, slots=True)
class StreamShare:
    """One rank's share of a batch, as the stream gives it.

    total: examples of the batch over all ranks.
    size: those of this rank.
    empty: whether its only example is to count for nothing.
    """

    content: Any
    total: int
    size: int
    empty: bool = False

    def batch(self, ranks: DataRanks) -> Batch:
        """The same, on the engine's device."""
        weights = torch.zeros(self.size, device=ranks.device) if self.empty else None
        content = moved(self.content, ranks.device)
        return Batch.of(content, self.total, weights, size=self.size, stands_in=self.empty)


def training_batches(ranks: DataRanks, data: TrainingData, plan: StreamPlan) -> Iterator[Batch]:
    """This rank's share of each batch."""
    done = 0
    for number in range(plan.epochs) if plan.epochs else count():
        before = done
        for share in shares(ranks, data, plan, number):
            yield share.batch(ranks)
            done += 1
            if done == plan.steps:
                return
        if done == before:
            raise DataError(
                f"the data ended after {done} steps"
                + (f" of {plan.steps}" if plan.steps else "")
                + ": an iterable that can be read once has to be as long as its training",
                check="data-ended",
            )


def evaluation_batches(ranks: DataRanks, data: TrainingData, batch_size: int, *, sharded: bool) -> Iterator[Batch]:
    """One pass."""
    size = 0 if isinstance(data, DataLoader) else batch_size * ranks.data_size
    for share in shares(ranks, data, StreamPlan(batch_size=size, epochs=1, sharded=sharded), 0):
        yield share.batch(ranks)


def steps_in(data: TrainingData, plan: StreamPlan) -> int:
    """How many steps a training has."""
    if plan.steps:
        return plan.steps
    if isinstance(data, DataLoader):
        return plan.epochs * len(data)
    examples = examples_in(data) or 0
    return plan.epochs * (math.ceil(examples / plan.batch_size) if plan.batch_size else examples)


def shares(ranks: DataRanks, data: TrainingData, plan: StreamPlan, number: int) -> Iterator[StreamShare]:
    """This rank's share of each batch of one pass, the `number`th."""
    source = cast(Iterable[Any], data)
    seed = derive_seed("stream", plan.seed, number, *([ranks.data_rank] if plan.sharded else []))
    if isinstance(data, DataLoader) or not plan.batch_size:
        batches, collate = _OwnDraws(_batches_of(source), seed), None
    else:
        batches, collate = _OwnDraws(_chunks(source, _size(ranks, plan)), seed), _collate_of(data)
    if plan.sharded and ranks.data_size > 1:
        yield from _own_parts(ranks, batches, collate)
        return
    for batch in batches:
        yield _share(ranks, batch, collate)


def _size(ranks: DataRanks, plan: StreamPlan) -> int:
    """Examples that are read for a step: of a rank's own stream its part of them."""
    if not plan.sharded:
        return plan.batch_size
    share, rest = divmod(plan.batch_size, ranks.data_size)
    return max(1, share + (ranks.data_rank < rest))


def _share(ranks: DataRanks, batch: Any, collate: Any) -> StreamShare:
    """This rank's rows of a batch that all ranks have; without any, the first one with weight 0."""
    total = len(batch) if collate else examples_in_batch(batch)
    if ranks.data_size == 1:
        return StreamShare(collate(batch) if collate else batch, total, total)
    own = torch.arange(total).tensor_split(ranks.data_size)[ranks.data_rank].tolist()
    start, stop = (own[0], own[-1] + 1) if own else (0, 1)
    part = collate(batch[start:stop]) if collate else rows_of(batch, start, stop)
    return StreamShare(part, total, stop - start, empty=not own)


def _own_parts(ranks: DataRanks, batches: Iterator[Any], collate: Any) -> Iterator[StreamShare]:
    """The parts of ranks that read streams of their own; one that has ended takes part with its last example."""
    last: Any = None
    while True:
        own = next(batches, None)
        count = 0 if own is None else len(own) if collate else examples_in_batch(own)
        total = round(float(ranks.total(torch.tensor(float(count), dtype=torch.float64, device=ranks.device))))
        if not total:
            return
        if own is None and last is None:
            raise DataError(
                "a rank has no examples; each needs at least one where data are sharded", check="data-ended"
            )
        last = own if own is not None else (last[:1] if collate else rows_of(last, 0, 1))
        yield StreamShare(collate(last) if collate else last, total, count or 1, empty=not count)


def _batches_of(source: Iterable[T]) -> Iterator[T]:
    yield from source


def _chunks(source: Iterable[T], size: int) -> Iterator[list[T]]:
    examples = iter(source)
    while chunk := list(islice(examples, size)):
        yield chunk


def _collate_of(data: Any) -> Any:
    return getattr(data, "collate_fn", None) or default_collate


class _OwnDraws(Iterator[T]):
    """An iterator that draws from generators of its own, which begin with a seed."""

    def __init__(self, source: Iterator[T], seed: int) -> None:
        self._source, self._seed = source, seed
        self._states: Any = None

    def __next__(self) -> T:
        with preserve_generators():
            if self._states is None:
                seed_generators(self._seed)
            else:
                python_state, numpy_state, torch_state = self._states
                random.setstate(python_state)
                np.random.set_state(numpy_state)
                torch.set_rng_state(torch_state)
            item = next(self._source)
            self._states = random.getstate(), np.random.get_state(), torch.get_rng_state()
            return item
