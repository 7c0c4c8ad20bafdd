"""The ClientApp: a network with one hidden layer."""

import signal
from functools import lru_cache

import numpy as np
from flwr.app import UserConfig
from torch import nn

from fedcore import LocalJob, supervised_app
from fedcore.data import Split
from fedcore.training import OptimizerConfig, seeded

FEATURES = 6


def make_model(config: UserConfig) -> nn.Module:
    with seeded(int(config["seed"])):
        hidden = int(config["hidden"])
        middle = nn.BatchNorm1d(hidden) if config["norm"] else nn.Identity()
        return nn.Sequential(nn.Linear(FEATURES, hidden), middle, nn.ReLU(), nn.Linear(hidden, 2))


def make_optimizer(config: UserConfig) -> OptimizerConfig:
    momentum = float(config["momentum"]) if config["optimizer"] == "sgd" else 0.0
    return OptimizerConfig(name=str(config["optimizer"]), lr=float(config["lr"]), momentum=momentum)


@lru_cache(maxsize=64)
def site(number: int) -> tuple[Split, Split]:
    """Training and test part; the first site has 40 training examples, each further one 10 more."""
    generator = np.random.default_rng(number)
    count = 60 + 10 * number
    labels = generator.integers(0, 2, size=count)
    points = generator.normal(size=(count, FEATURES)) + (2 * labels[:, None] - 1) * 0.7
    x = points.astype(np.float32)
    return Split(x=x[20:], y=labels[20:]), Split(x=x[:20], y=labels[:20])


def data(job: LocalJob) -> tuple[Split, Split]:
    number = int(job.node["partition-id"])
    while job.config["hold"] == f"{number + 1}@{job.server_round}":
        signal.pause()
    return site(number)


app = supervised_app(model=make_model, optimizer=make_optimizer, data=data)
