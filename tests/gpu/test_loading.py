"""Batches on a device are those of the processor, bit for bit and in the same order, however they get there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedcore.data import Split
from fedcore.training.engines import Batch
from fedcore.training.engines.batches import Loaders, Rows, ordered_rows, prefetch, shared_rows

GREY = Split(
    x=np.random.default_rng(1).integers(0, 256, (53, 3, 4), dtype=np.uint8),
    y=np.random.default_rng(2).integers(0, 9, 53),
)


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """The same examples as a dataset, with random noise of an example's own."""

    def __len__(self) -> int:
        return len(GREY)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(GREY.x[row]).float() + torch.rand(()), torch.tensor(GREY.y[row])


def rows_of(kind: str) -> Iterator[Rows]:
    match kind:
        case "shuffled":
            return shared_rows(len(GREY), 8, 20, seed=4, rank=0, ranks=1)
        case "full":
            return shared_rows(len(GREY), len(GREY), 3, seed=4, rank=0, ranks=1)
        case "share":  # one example a step: rank 1 has none, and gets one of weight 0
            return shared_rows(len(GREY), 1, 5, seed=4, rank=1, ranks=2)
    return ordered_rows(len(GREY), 16, rank=0, ranks=1)


def taken(loaders: Loaders, data: Split | Pairs, kind: str) -> list[list[np.ndarray]]:
    """Everything of every batch, after work on the device that takes longer than making the next one."""
    found = []
    for batch in loaders.batches(data, rows_of(kind), seed=3):
        busy = batch.x.float().flatten(1)
        for _ in range(20):
            busy = (busy @ busy.T @ busy) / 1e6
        assert {tensor.device for tensor in batch.tensors} == {busy.device}
        found.append([tensor.cpu().numpy() for tensor in batch.tensors] + [np.array(batch.total)])
    return found


@pytest.mark.parametrize("kind", ["shuffled", "full", "share", "in order"])
@pytest.mark.parametrize("data", [GREY, Pairs()], ids=["arrays", "dataset"])
@pytest.mark.parametrize("room", [None, 0], ids=["kept on the device", "sent batch by batch"])
def test_the_batches_are_those_of_the_processor(device: torch.device, data, kind: str, room: int | None) -> None:
    expected, found = taken(Loaders(torch.device("cpu")), data, kind), taken(Loaders(device, room=room), data, kind)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


def test_the_next_batch_is_made_before_the_last_is_worked_on(device: torch.device) -> None:
    made: list[int] = []

    def batches() -> Iterator[Batch]:
        for number in range(4):
            made.append(number)
            yield Batch(torch.full((2,), number, device=device), torch.zeros(2, device=device), 2)

    seen = [(int(batch.x[0]), len(made)) for batch in prefetch(batches(), device)]
    assert seen == [(0, 2), (1, 3), (2, 4), (3, 4)]


def test_what_making_a_batch_raises_comes_through(device: torch.device) -> None:
    def batches() -> Iterator[Batch]:
        yield Batch(torch.zeros(2, device=device), torch.zeros(2, device=device), 2)
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        list(prefetch(batches(), device))


def test_arrays_beyond_the_room_leave_it_or_stay_away(device: torch.device) -> None:
    """A third data set of this size has no room beside two; one that is larger than the room never lies there."""
    size = GREY.x.nbytes + GREY.y.nbytes
    loaders = Loaders(device, room=2 * size)
    sets = [Split(x=GREY.x.copy(), y=GREY.y.copy()) for _ in range(3)]
    for data in sets:
        next(iter(loaders.batches(data, rows_of("shuffled"))))
    assert [loaders.keeps(data) for data in sets] == [False, True, True]
    large = Split(x=np.concatenate([GREY.x] * 3), y=np.concatenate([GREY.y] * 3))
    next(iter(loaders.batches(large, rows_of("shuffled"))))
    assert not loaders.keeps(large)
