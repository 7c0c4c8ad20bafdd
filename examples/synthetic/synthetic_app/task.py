"""What the server and the clients share: the model, and how the data are divided."""

from functools import lru_cache
from typing import Any

from flwr.app import UserConfig
from torch import nn

from fedcore.data import Dataset, Split, client_data, load_synthetic
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.models import logistic_regression

FEATURES, CLASSES = 60, 10


def initial_model(config: UserConfig) -> nn.Module:
    """The model with the weights that every run with this seed starts from."""
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        return logistic_regression(FEATURES, CLASSES)


def whole(config: UserConfig) -> Dataset:
    """The samples of all devices."""
    return _made(*_settings(config))


def local_data(config: UserConfig, device: int, devices: int) -> tuple[Split, Split]:
    """Training and test part of one device."""
    return _part(device, devices, *_settings(config))


def _settings(config: UserConfig) -> tuple[float, float, bool, int]:
    return float(config["alpha"]), float(config["beta"]), bool(config["iid"]), int(config["seed"])


@lru_cache(maxsize=1)
def _made(alpha: float, beta: float, iid: bool, seed: int) -> Dataset:
    return load_synthetic(alpha, beta, iid=iid, seed=seed)


@lru_cache(maxsize=128)
def _part(device: int, devices: int, *settings: Any) -> tuple[Split, Split]:
    return client_data(_made(*settings), "natural", client=device, clients=devices, seed=0)


def optimizer(config: UserConfig) -> OptimizerConfig:
    return OptimizerConfig(lr=float(config["lr"]))
