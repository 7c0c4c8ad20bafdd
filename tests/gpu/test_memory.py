"""A training that finds no memory says what to lower, gives back what it held, and the next one works."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedcore.data import Split
from fedcore.errors import OutOfMemory
from fedcore.run.engine_config import EngineConfig
from fedcore.training import OptimizerConfig, Recipe, World, evaluate, make_engine, train

DATA = Split(x=np.ones((64, 4), np.float32), y=np.arange(64) % 3)
SHARE = 0.05
HUNGRY = 32
"""Examples of a batch from which on the model asks for more than there is."""


class Hungry(nn.Module):
    """Keeps activations, and asks for more memory than there is where a batch is large."""

    def __init__(self, too_much: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.too_much = too_much
        self.held: weakref.ref[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x).repeat(1, 1)
        self.held = weakref.ref(hidden)
        if len(x) > HUNGRY:
            torch.empty(self.too_much, dtype=torch.uint8, device=x.device)
        return hidden


def hungry_engine(device: torch.device):
    """On a GPU it asks for twice what its share of the memory is; on the processor for a petabyte."""
    on_gpu = device.type == "cuda"
    too_much = int(2 * SHARE * torch.cuda.get_device_properties(device).total_memory) if on_gpu else 2**50
    recipe = Recipe(build=lambda: Hungry(too_much), optimizer=OptimizerConfig(lr=0.1, momentum=0.9))
    config = EngineConfig(memory_share=SHARE if on_gpu else 0.0)
    return make_engine(recipe, config, World(device=device))


@pytest.fixture(autouse=True)
def no_limit_afterwards():
    yield
    if torch.cuda.is_initialized():
        torch.cuda.set_per_process_memory_fraction(1.0)


def held_on(device: torch.device) -> int:
    gc.collect()
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def test_a_training_without_memory_leaves_none_behind(device: torch.device) -> None:
    engine = hungry_engine(device)
    assert train(engine, DATA, batch_size=8, seed=1, epochs=1).steps == 8
    engine.optimizer.zero_grad()
    before = held_on(device)
    with pytest.raises(OutOfMemory, match=rf"\b64\b.*{device.type}.*micro-batches=4"):
        train(engine, DATA, batch_size=64, seed=1, epochs=1)
    assert engine.module.held is not None
    assert engine.module.held() is None, "the activations of the step that failed are still there"
    assert all(parameter.grad is None for parameter in engine.parameters())
    assert held_on(device) <= before
    assert train(engine, DATA, batch_size=HUNGRY, seed=1, epochs=1).steps == 2, "the next round works"


def test_the_engine_s_own_advice_helps(device: torch.device) -> None:
    engine = hungry_engine(device)
    engine.config = EngineConfig(micro_batches=4, memory_share=engine.config.memory_share)
    assert train(engine, DATA, batch_size=64, seed=1, epochs=1).steps == 1


def test_a_test_without_memory_says_so_as_well(device: torch.device) -> None:
    with pytest.raises(OutOfMemory, match=r"\b1024\b"):
        evaluate(hungry_engine(device), DATA)


def test_other_errors_stay_what_they_are(device: torch.device) -> None:
    engine = hungry_engine(device)
    with pytest.raises(RuntimeError, match=r"\b8x5\b.*\b4x3\b"):
        train(engine, Split(x=np.ones((8, 5), np.float32), y=DATA.y[:8]), batch_size=8, seed=1, epochs=1)


def test_a_share_bounds_what_a_process_may_have(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("a share is of a GPU's memory; that it is refused elsewhere is a quick test")
    hungry_engine(device)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.empty(int(0.5 * SHARE * total), dtype=torch.uint8, device=device)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(int(1.1 * SHARE * total), dtype=torch.uint8, device=device)
