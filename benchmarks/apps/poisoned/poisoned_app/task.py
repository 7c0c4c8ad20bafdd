"""The model, the parts of the clients, and which of them are poisoned."""

from functools import lru_cache

import numpy as np
from flwr.app import UserConfig
from torch import nn

from fedcore.data import Dataset, Split, client_data, load_mnist
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.models import mcmahan_2nn


def initial_model(config: UserConfig) -> nn.Module:
    """The same for every run with this seed."""
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        return mcmahan_2nn()


@lru_cache(maxsize=1)
def whole() -> Dataset:
    """All images, read once."""
    return load_mnist()


@lru_cache(maxsize=128)
def local_data(partition: str, client: int, clients: int, seed: int) -> tuple[Split, Split]:
    """Training and test part of one client."""
    return client_data(whole(), partition, client=client, clients=clients, seed=seed)


def is_poisoned(client: int, clients: int, config: UserConfig) -> bool:
    """Whether this one is among the share of the clients that the seed chose."""
    count = int(float(config["poisoned"]) * clients)
    return client in np.random.default_rng(derive_seed("poisoned", int(config["seed"]))).permutation(clients)[:count]


def optimizer(config: UserConfig) -> OptimizerConfig:
    """SGD."""
    return OptimizerConfig(lr=float(config["lr"]))
