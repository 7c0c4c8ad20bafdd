"""What the ranks of a machine cannot have is refused by name, before anything starts."""

import pytest
import torch
from support.raising import raises
from torch import nn

from fedcore.errors import ConfigurationError, OutOfMemory
from fedcore.run.engine_config import EngineConfig
from fedcore.system.memory import is_out_of_memory
from fedcore.training import OptimizerConfig, Recipe, World, make_engine

ON_ONE_GPU = World(rank=0, size=2, device=torch.device("cuda", 0), shared=True)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_of_memory_is_between_none_and_all(share):
    with pytest.raises(ConfigurationError, match=r"memory-share.*\[0, 1\]"):
        EngineConfig.from_mapping({"memory-share": share}, ranks=1)


def test_a_share_of_a_gpu_that_is_not_there():
    recipe = Recipe(build=lambda: nn.Linear(2, 2), optimizer=OptimizerConfig())
    with pytest.raises(ConfigurationError, match=r"memory-share = 0\.5"):
        make_engine(recipe, EngineConfig(memory_share=0.5), World())


@pytest.mark.parametrize("settings", [{"engine": "fsdp"}, {"engine": "tp"}, {"engine": "pp"}])
def test_engines_that_two_ranks_on_one_gpu_cannot_have(settings):
    with raises(ConfigurationError, check="gpu-for-each-rank", match=settings["engine"]):
        ON_ONE_GPU.check(EngineConfig.from_mapping(settings, ranks=2))


def test_ddp_shares_a_gpu():
    ON_ONE_GPU.check(EngineConfig.from_mapping({"memory-share": 0.4}, ranks=2))


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OutOfMemory("no memory"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_a_lack_of_memory_is_known(error, is_memory):
    assert is_out_of_memory(error) == is_memory
