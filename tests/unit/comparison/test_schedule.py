"""Which examples a worker takes: the same ones in every mode, and those that a federated client would take."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedcore.comparison.workers.schedule import Schedule
from fedcore.data import Split
from fedcore.training.engines import EngineConfig, Recipe, World, make_engine
from fedcore.training.engines.batches import Rows
from fedcore.training.optimizers import OptimizerConfig

COUNTS = st.lists(st.integers(1, 30), min_size=1, max_size=4).map(tuple)


def taken(rows: Rows, count: int) -> list[int]:
    return [] if rows.empty else torch.arange(count)[rows.rows].tolist()


@given(counts=COUNTS, size=st.integers(0, 40), epochs=st.integers(1, 3), seed=st.integers(0, 99))
def test_a_pooled_batch_is_the_union_of_the_shares(counts: tuple[int, ...], size: int, epochs: int, seed: int):
    schedule = Schedule(counts=counts, batch_size=8, epochs=epochs)
    seeds = [seed + site for site in range(len(counts))]
    shares = [schedule.share(site, size, seed=seeds[site]) for site in range(len(counts))]
    offsets = [sum(counts[:site]) for site in range(len(counts))]
    seen: Counter[int] = Counter()
    steps = 0
    for pooled, *parts in zip(schedule.pooled(size, seeds=seeds), *shares, strict=True):
        union = [
            row + offset
            for part, offset, count in zip(parts, offsets, counts, strict=True)
            for row in taken(part, count)
        ]
        assert pooled.rows.tolist() == union
        assert {pooled.total, *(part.total for part in parts)} == {len(union)}
        assert len(union) <= (size or sum(counts))
        seen.update(union)
        steps += 1
    assert steps == schedule.global_steps(size)[1]
    # With epochs the budget is met exactly: every example as often as a site on its own would take it.
    assert seen == Counter(dict.fromkeys(range(sum(counts)), epochs))
    assert schedule.global_samples(size) == schedule.samples == epochs * sum(counts)


@given(counts=COUNTS, batch=st.integers(1, 12), steps=st.integers(1, 30), size=st.integers(1, 40))
def test_with_steps_the_budget_is_met_to_within_a_batch(counts: tuple[int, ...], batch: int, steps: int, size: int):
    schedule = Schedule(counts=counts, batch_size=batch, steps=steps)
    own = [sum(len(taken(rows, counts[site])) for rows in schedule.own(site, seed=1)) for site in range(len(counts))]
    assert own == [schedule.own_samples(site) for site in range(len(counts))]
    together = sum(rows.total for rows in schedule.share(0, size, seed=1))
    assert together == schedule.global_samples(size)
    assert abs(together - schedule.samples) <= min(size, sum(counts))


@pytest.mark.parametrize("batch_size", [0, 4, 7])
@pytest.mark.parametrize(("epochs", "steps"), [(2, 0), (0, 9)])
def test_a_worker_on_its_own_draws_what_a_federated_client_draws(batch_size: int, epochs: int, steps: int):
    counts = (10, 23)
    schedule = Schedule(counts=counts, batch_size=batch_size, epochs=epochs, steps=steps)
    recipe = Recipe(build=lambda: nn.Linear(1, 2), optimizer=OptimizerConfig())
    engine = make_engine(recipe, EngineConfig(), World())
    for site, count in enumerate(counts):
        numbers = np.arange(count, dtype=np.float32)[:, None]
        data = Split(x=numbers, y=np.zeros(count, np.int64))
        batches = engine.batches(data, batch_size=batch_size, seed=5 + site, epochs=epochs, steps=steps)
        drawn = [batch.x[:, 0].int().tolist() for batch in batches]
        assert [taken(rows, count) for rows in schedule.own(site, seed=5 + site)] == drawn
