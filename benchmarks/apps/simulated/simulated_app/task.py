"""Models, random examples and the optimizer, for the app and for those that train the same without it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from torch import Tensor, nn

from fedcore.data import Split
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.models import digits_mlp, mcmahan_2nn

_POOL: Final = 6000
"""Examples that there are; a client's are some of them that follow one another, so they cost no time and no memory."""


class ChannelsFirst(nn.Module):
    """[n, height, width, channels] -> [n, channels, height, width]."""

    def forward(self, images: Tensor) -> Tensor:
        return images.permute(0, 3, 1, 2)


def cifar_cnn() -> nn.Sequential:
    """The CNN of pfl-research's CIFAR-10 benchmark (`simple_cnn` of its benchmarks/model/pytorch/cnn.py)."""
    return nn.Sequential(
        OrderedDict(
            image=ChannelsFirst(),
            conv1=nn.Conv2d(3, 32, 3),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            dropout1=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            hidden=nn.Linear(14 * 14 * 64, 128),
            relu3=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            output=nn.Linear(128, 10),
        )
    )


def wide(parameters: int) -> nn.Sequential:
    """Ten square layers with that many parameters together, roughly."""
    width = math.isqrt(parameters // 10)
    layers = [layer for _ in range(10) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *layers, nn.Linear(width, 10))


@dataclass(frozen=True, slots=True)
class Model:
    """A model with ten classes, and the shape of its examples."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


MODELS: Final[Mapping[str, Model]] = {
    "digits": Model(digits_mlp, (64,)),
    "2nn": Model(mcmahan_2nn, (28, 28)),
    "cifar-cnn": Model(cifar_cnn, (32, 32, 3)),
    "wide-1e6": Model(lambda: wide(10**6), (64,)),
    "wide-1e8": Model(lambda: wide(10**8), (64,)),
}


def initial_model(config: Mapping[str, Any]) -> nn.Module:
    """The model with the weights that every run with this seed starts from."""
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        return MODELS[str(config["model"])].build()


@cache
def pool(model: str) -> Split:
    """All examples of a model."""
    rng = np.random.default_rng(0)
    x = rng.random((_POOL, *MODELS[model].shape), np.float32)
    return Split(x=x, y=rng.integers(0, 10, _POOL))


def local_data(model: str, examples: int, client: int) -> Split:
    """The examples of one client, 0 to any number."""
    whole = pool(model)
    start = client * examples % (_POOL - examples + 1)
    return Split(x=whole.x[start : start + examples], y=whole.y[start : start + examples])


def optimizer(config: Mapping[str, Any]) -> OptimizerConfig:
    """Plain SGD."""
    return OptimizerConfig(lr=float(config["lr"]))
