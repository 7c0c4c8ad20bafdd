"""Which rank works on which examples: every example once a pass, and batches of the size that was asked for."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.raising import raises
from torch import nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError
from fedcore.training import local_engine
from fedcore.training.engines import Batch
from fedcore.training.engines.batches import own_rows, shared_rows, steps_of

counts_of_ranks = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def expected_totals(examples, size, steps):
    one_pass = [min(size, examples - first) for first in range(0, examples, size)]
    return list(itertools.islice(itertools.cycle(one_pass), steps))


def rows_of(parts):
    return [row for part in parts if not part.empty for row in part.rows.tolist()]


@given(counts_of_ranks, st.integers(1, 250), st.integers(1, 3), st.integers(0, 2**32))
def test_own_rows_take_every_example_once_a_pass(counts, size, epochs, seed):
    size, steps = steps_of(sum(counts), batch_size=size, epochs=epochs, steps=0)
    walks = [list(own_rows(counts, size, steps, seed=seed + rank, rank=rank)) for rank in range(len(counts))]
    for count, walk in zip(counts, walks, strict=True):
        assert sorted(rows_of(walk)) == sorted(list(range(count)) * epochs)
    for parts, total in zip(zip(*walks, strict=True), expected_totals(sum(counts), size, steps), strict=True):
        assert {part.total for part in parts} == {total}
        assert len(rows_of(parts)) == total
        assert all(len(part.rows) == 1 for part in parts if part.empty)


@given(counts_of_ranks, st.integers(1, 250))
def test_each_rank_s_share_of_a_batch_is_near_its_share_of_the_data(counts, size):
    size, steps = steps_of(sum(counts), batch_size=size, epochs=1, steps=0)
    for rank, count in enumerate(counts):
        for part in own_rows(counts, size, steps, seed=0, rank=rank):
            share = 0 if part.empty else len(part.rows)
            # Within the rounding of every other rank's place in the sequence.
            assert abs(share - part.total * count / sum(counts)) <= len(counts)


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 70), st.integers(1, 3), st.integers(0, 2**32))
def test_shared_rows_are_the_same_batches_for_any_number_of_ranks(examples, ranks, size, epochs, seed):
    size, steps = steps_of(examples, batch_size=size, epochs=epochs, steps=0)
    alone = [
        torch.arange(examples)[part.rows].tolist()
        for part in shared_rows(examples, size, steps, seed=seed, rank=0, ranks=1)
    ]
    walks = [list(shared_rows(examples, size, steps, seed=seed, rank=rank, ranks=ranks)) for rank in range(ranks)]
    assert [len(rows) for rows in alone] == expected_totals(examples, size, steps)
    if ranks > 1:
        assert [rows_of(parts) for parts in zip(*walks, strict=True)] == alone
        shares = [[0 if part.empty else len(part.rows) for part in parts] for parts in zip(*walks, strict=True)]
        assert all(max(share) - min(share) <= 1 for share in shares)


@given(st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_micro_batches_are_the_batch(examples, count, weighted):
    weights = torch.rand(examples) if weighted else None
    batch = Batch(torch.arange(examples), torch.arange(examples) * 2, 99, weights)
    parts = batch.split(count)
    assert len(parts) == count
    assert {part.total for part in parts} == {99}
    whole = torch.ones(examples) if weights is None else weights
    kept = [(x, y, w) for part in parts for x, y, w in zip(part.x, part.y, ones(part), strict=True) if w > 0]
    assert [(int(x), int(y)) for x, y, _ in kept] == [(i, 2 * i) for i in range(examples) if whole[i] > 0]
    assert float(sum(ones(part).sum() for part in parts)) == pytest.approx(float(whole.sum()))


def ones(batch):
    return torch.ones(len(batch)) if batch.weights is None else batch.weights


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"examples": 5, "batch_size": 2, "epochs": 1, "steps": 1}, {"match": r"epochs 1.*steps 1"}),
        ({"examples": 5, "batch_size": 2, "epochs": 0, "steps": 0}, {"match": r"epochs 0.*steps 0"}),
        ({"examples": 5, "batch_size": -1, "epochs": 1, "steps": 0}, {"match": "-1"}),
        ({"examples": 0, "batch_size": 1, "epochs": 1, "steps": 0}, {"check": "no-examples"}),
    ],
)
def test_settings_that_mean_nothing(settings, what):
    with raises(ConfigurationError, **what):
        steps_of(settings.pop("examples"), **settings)


@pytest.mark.parametrize("batch_size", [0, 2])
def test_a_model_that_writes_into_its_input_does_not_change_the_data(batch_size):
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    x.flags.writeable = False  # as arrays of a file are, and a write through a tensor would not ask
    data = Split(x=x, y=np.zeros(4, np.int64))
    engine = local_engine(nn.Linear(3, 2))
    for batch in engine.batches(data, batch_size=batch_size, seed=0, epochs=1):
        batch.x.zero_()
        batch.y.fill_(7)
    np.testing.assert_array_equal(data.x, np.arange(12).reshape(4, 3))
    assert not data.y.any()
