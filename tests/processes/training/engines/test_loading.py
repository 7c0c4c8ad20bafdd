"""Batches from a dataset: its processes stay, and what it draws at random follows the seed alone."""

import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from fedcore.data import Split
from fedcore.run.engine_config import EngineConfig
from fedcore.training.engines import Recipe, World, make_engine
from fedcore.training.seeds import derive_seed, seeded
from tests.support.engine_runs import MODELS, OPTIMIZERS


class Noisy(Dataset):
    """Pairs of (row, process, three draws), so that a batch tells who made it and with which random numbers."""

    def __len__(self):
        return 10

    def __getitem__(self, row):
        draws = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor([row, os.getpid(), *draws], dtype=torch.float64), row % 2


@pytest.fixture
def engine():
    made = make_engine(Recipe(build=MODELS["layers"], optimizer=OPTIMIZERS["sgd"]), EngineConfig(), World())
    yield made
    made.close()


def walk(engine, data, *, workers, seed, steps=3):
    batches = list(engine.batches(data, batch_size=4, seed=seed, steps=steps, workers=workers))
    assert [len(batch) for batch in batches] == [4, 4, 2][:steps]
    return torch.cat([batch.x for batch in batches])


def test_worker_processes_stay_from_round_to_round(engine):
    data = Noisy()
    first, second = (set(walk(engine, data, workers=2, seed=seed)[:, 1].tolist()) for seed in (1, 2))
    assert len(first) == 2
    assert first == second
    assert os.getpid() not in first


def test_a_pass_that_was_left_early_does_not_leak_into_the_next(engine):
    data = Noisy()
    batches = engine.batches(data, batch_size=2, seed=1, steps=5, workers=2)
    next(batches)
    del batches
    torch.testing.assert_close(walk(engine, data, workers=2, seed=3)[:, 0], walk(engine, data, workers=0, seed=3)[:, 0])


def test_random_augmentation_follows_the_seed_whoever_reads(engine):
    data = Noisy()
    alone = walk(engine, data, workers=0, seed=1)
    walk(engine, data, workers=2, seed=5)
    helped = walk(engine, data, workers=2, seed=1)
    other = walk(engine, data, workers=0, seed=2)
    columns = [0, 2, 3, 4]
    assert torch.equal(alone[:, columns], helped[:, columns])
    assert len(alone[:, 2:].unique()) == alone[:, 2:].numel()
    assert not set(alone[:, 2].tolist()) & set(other[:, 2].tolist())


def test_an_example_draws_from_its_own_seed(engine):
    drawn = walk(engine, Noisy(), workers=0, seed=1)
    for place, (row, _, *draws) in enumerate(drawn.tolist()):
        with seeded(derive_seed("example", 1, place // 4, int(row))):
            assert draws == [random.random(), np.random.rand(), float(torch.rand(()))]


def test_generators_are_kept_and_restored_once_for_a_batch(engine, monkeypatch):
    """Each costs more than a small example; torch.manual_seed would cost most of all."""
    calls = []
    for module, name in ((torch, "manual_seed"), (np.random, "get_state"), (np.random, "set_state")):
        real = getattr(module, name)

        def counted(*arguments, name=name, real=real):
            calls.append(name)
            return real(*arguments)

        monkeypatch.setattr(module, name, counted)
    walk(engine, Noisy(), workers=0, seed=1)
    assert calls == ["get_state", "set_state"] * 3


def test_reading_leaves_the_global_generators_alone(engine):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    walk(engine, Noisy(), workers=0, seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_a_full_batch_keeps_the_order(engine):
    (batch,) = engine.batches(Noisy(), batch_size=0, seed=1, epochs=1)
    assert batch.x[:, 0].tolist() == list(range(10))


def test_grey_levels_become_fractions(engine):
    data = Split(x=np.array([[0, 255], [51, 102]], np.uint8), y=np.array([0, 1]))
    (batch,) = engine.batches(data, batch_size=0, seed=1, epochs=1)
    torch.testing.assert_close(batch.x, torch.tensor([[0, 1], [0.2, 0.4]]))
