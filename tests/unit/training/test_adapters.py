"""Which part of a model trains and travels, and what is refused."""

import copy

import torch
from support.raising import raises
from torch import nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError
from fedcore.training import OptimizerConfig, local_engine, seeded, train
from fedcore.training.models import mlp
from fedcore.training.shared_tensors import adapter_names, freeze_all_but

HEAD = ("output.weight", "output.bias")


def frozen_but_the_head(seed=0):
    with seeded(seed):
        model = mlp(4, (6, 5), 3)
    freeze_all_but(model, ["output.*"])
    return model


def test_the_adapter_is_what_a_pattern_leaves():
    model = mlp(4, (6, 5), 3)
    assert freeze_all_but(model, ["*.bias", "output.weight"]) == ("hidden1.bias", "hidden2.bias", *HEAD)
    # Asked again, other parameters thaw.
    assert freeze_all_but(model, ["output.*"]) == HEAD == adapter_names(model)
    assert not model.hidden1.bias.requires_grad


def test_a_pattern_that_fits_nothing_is_refused_and_changes_nothing():
    model = frozen_but_the_head()
    with raises(ConfigurationError, check="no-such-parameter", match=r"'head\.\*'"):
        freeze_all_but(model, ["hidden1.*", "head.*"])
    assert adapter_names(model) == HEAD


def test_a_model_without_an_adapter_is_refused():
    model = mlp(4, (6,), 3)
    with raises(ConfigurationError, check="nothing-frozen"):
        adapter_names(model)
    with raises(ConfigurationError, check="nothing-frozen"):
        freeze_all_but(model, ["*"])
    model.requires_grad_(False)
    with raises(ConfigurationError, check="all-frozen"):
        adapter_names(model)


def test_training_moves_the_adapter_alone():
    model = frozen_but_the_head()
    before = copy.deepcopy(model.state_dict())
    with seeded(1):
        data = Split(x=torch.randn(20, 4).numpy(), y=torch.randint(3, (20,)).numpy())
    # Weight decay would move a frozen weight that an optimizer steps over.
    engine = local_engine(model, OptimizerConfig(lr=0.1, weight_decay=0.1))
    train(engine, data, batch_size=5, epochs=1, seed=0)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == set(HEAD)


def test_buffers_are_no_part_of_an_adapter():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert freeze_all_but(model, ["1.*"]) == ("1.weight", "1.bias")
    assert adapter_names(model) == ("1.weight", "1.bias")
