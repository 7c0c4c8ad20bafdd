"""Checkpointing, compilation and determinism: what is done, and what is refused."""

import gc
import shutil
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.training.engines import Batch, Recipe, World, make_engine
from fedcore.training.engines.building import prepare
from tests.support.engine_runs import MODELS, Case, data_of, engine_of, train
from tests.support.ranks import Ranks


class Squares(nn.Module):
    """Keeps its intermediate results for the backward pass; `alive` tells how many of them are in memory."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.made = []

    def forward(self, x):
        inner = x * self.weight
        self.made.append(weakref.ref(inner))
        return inner * inner

    def alive(self):
        gc.collect()
        return sum(reference() is not None for reference in self.made)


@pytest.mark.parametrize("on", [False, True])
def test_a_checkpointed_block_keeps_nothing_inside(on):
    squares = Squares()
    model = prepare(nn.Sequential(squares), EngineConfig(checkpoint=on))
    output = model(torch.ones(2, 4, requires_grad=True)).sum()
    assert squares.alive() == (0 if on else 1)
    output.backward()
    assert len(squares.made) == (2 if on else 1)
    assert torch.equal(squares.weight.grad, torch.full((4,), 4.0))


def test_names_stay():
    names = list(MODELS["tied"]().state_dict())
    assert list(prepare(MODELS["tied"](), EngineConfig(checkpoint=True)).state_dict()) == names


def test_checkpointing_needs_blocks():
    with pytest.raises(ConfigurationError, match="parallel_plan"):
        prepare(nn.Linear(2, 2), EngineConfig(checkpoint=True))


def test_compiling_needs_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigurationError, match="no-such-compiler"):
        prepare(nn.Linear(2, 2), EngineConfig(compile=True))
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match=r"c\+\+ or g\+\+"):
        prepare(nn.Linear(2, 2), EngineConfig(compile=True))


def determinism():
    before = torch.are_deterministic_algorithms_enabled()
    engine_of(Case(engine={"engine": "ddp", "deterministic": True}))
    return before, torch.are_deterministic_algorithms_enabled()


def test_deterministic_holds_in_the_process_of_a_rank():
    with Ranks(1) as ranks:
        assert ranks.run(determinism) == [(False, True)]


def test_a_step_without_gradients_clips_nothing():
    recipe = Recipe(build=lambda: nn.Linear(2, 2), optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1))
    engine = make_engine(recipe, EngineConfig(), World())
    assert float(engine.clip(1.0)) == 0


def test_outputs_are_float32_whatever_the_precision():
    case = Case(engine={"engine": "single", "precision": "bf16"})
    data = data_of(case)
    output = engine_of(case).outputs(Batch(torch.tensor(data.x), torch.tensor(data.y), len(data)))
    assert output.dtype == torch.float32


def train_compiled(case):
    outcome = train(case)
    return outcome, counters["stats"]["unique_graphs"]


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="torch.compile needs a C++ compiler")
def test_compiled_blocks_train_alike():
    case = Case(engine={"engine": "fsdp", "compile": True, "checkpoint": True}, steps=5)
    with Ranks(1) as ranks:
        ((found, graphs),) = ranks.run(train_compiled, case)
    expected = train(case.single())
    assert graphs == 3
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert list(found.weights) == list(expected.weights)
    for name, array in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], array, rtol=0, atol=1e-5)
