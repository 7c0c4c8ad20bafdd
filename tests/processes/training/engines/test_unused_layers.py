"""Layers that a step does not reach, where DDP cannot do without them: refused by the rule on every rank."""

import pytest
import torch
from support.several_tensors import SGD, Listed
from torch import nn

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.training import train
from fedcore.training.engines import Recipe, make_engine
from fedcore.training.losses import squared_error

ROWS = Listed([(torch.full((2,), float(n)), torch.tensor(float(n))) for n in range(8)])


class Changing(nn.Module):
    """Goes through one layer in the first step, and through the other in the next."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(2, 1), nn.Linear(2, 1), 0

    def forward(self, x):
        self.calls += 1
        return self.first(x) if self.calls % 2 else self.second(x)


def refusal(**settings):
    torch.set_num_threads(1)
    recipe = Recipe(build=Changing, optimizer=SGD, loss=squared_error)
    engine = make_engine(recipe, EngineConfig(engine="ddp", **settings))
    try:
        train(engine, ROWS, batch_size=2, epochs=1, seed=1)
    except ConfigurationError as error:
        return error.check, str(error)
    finally:
        engine.close()
    return "trained", ""


def with_static_graph():
    return refusal(static_graph=True)


def with_powersgd():
    return refusal(hook="powersgd")


@pytest.mark.parametrize(
    ("run", "setting", "names"),
    [(with_static_graph, "static-graph", ()), (with_powersgd, "hook=powersgd", ("second.weight", "second.bias"))],
    ids=["static-graph", "powersgd"],
)
def test_the_setting_that_needs_all_layers_is_named(two, run, setting, names):
    for check, text in two.run(run):
        assert check == "layers-unused"
        assert "\n" not in text
        for word in (setting, *names):
            assert word in text


def test_without_them_layers_may_go_unused(two):
    assert two.run(refusal) == [("trained", "")] * 2
