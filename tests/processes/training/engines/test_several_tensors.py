"""Batches of several tensors on two ranks: the same as in one process of bare PyTorch."""

import pytest
import torch
from support.several_tensors import SGD, STEPS, Listed, as_dicts, as_tuples, in_bare_torch, made_up, model, two_losses
from torch import nn

from fedcore.errors import UsageError
from fedcore.run.engine_config import EngineConfig
from fedcore.state import MemorySink, ModelState
from fedcore.training import train
from fedcore.training.engines import Recipe, make_engine
from fedcore.training.losses import as_loss
from tests.support.ranks import RankFailed


def trained(name, collate, micro_batches=0):
    torch.set_num_threads(1)
    config = EngineConfig(engine=name, micro_batches=micro_batches)
    engine = make_engine(Recipe(build=model, optimizer=SGD, loss=as_loss(two_losses)), config)
    engine.load(ModelState.from_arrays({key: tensor.numpy() for key, tensor in model().state_dict().items()}))
    train(engine, Listed(made_up(), collate), batch_size=0, steps=STEPS, seed=1)
    sink = MemorySink(engine.layout()) if engine.world.rank == 0 else None
    engine.save(sink)
    return dict(sink.state().items()) if sink is not None else None


@pytest.mark.parametrize(
    ("name", "collate", "micro_batches"),
    [("ddp", as_dicts, 0), ("ddp", as_tuples, 4), ("fsdp", as_dicts, 0)],
    ids=["ddp, dicts", "ddp, tuples in micro-batches", "fsdp, dicts"],
)
def test_two_ranks_are_bare_torch(two, name, collate, micro_batches):
    found, _ = two.run(trained, name, collate, micro_batches)
    for key, tensor in in_bare_torch().state_dict().items():
        torch.testing.assert_close(torch.from_numpy(found[key]), tensor, rtol=0, atol=1e-6)


def two_stages():
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))


def in_a_pipeline():
    config = EngineConfig(engine="pp", micro_batches=2)
    engine = make_engine(Recipe(build=two_stages, optimizer=SGD), config)
    train(engine, Listed([((torch.ones(2), torch.ones(2)), 1)] * 4), batch_size=0, steps=1, seed=1)


def test_a_pipeline_says_that_it_takes_one_tensor(two):
    with pytest.raises(RankFailed, match=UsageError.__name__):
        two.run(in_a_pipeline)
