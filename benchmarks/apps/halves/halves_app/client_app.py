"""Both apps: clients train on the half of their records that the run config draws; the strategy is the run config's."""

from functools import lru_cache

import numpy as np
from flwr.app import UserConfig
from numpy.typing import NDArray
from torch import nn

from fedcore import LocalJob, averaging_server, supervised_app
from fedcore.data import Split, client_data, load_digits, load_heart_disease
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.models import digits_mlp, logistic_regression

ALL = -1
"""The half that is the whole."""


def members(records: int, half: int, client: int) -> NDArray[np.bool_]:
    """Which of a client's records it trains on [records]; of an odd half those that the one before leaves out."""
    order = np.random.default_rng([half // 2, client]).permutation(records)
    chosen = np.zeros(records, bool)
    chosen[order[: records // 2]] = True
    return ~chosen if half % 2 else chosen


@lru_cache(maxsize=32)
def all_records(name: str, client: int, clients: int) -> tuple[Split, Split]:
    """Training and test part of one client; kept, since a worker asks every round."""
    if name == "digits":
        return client_data(load_digits(), "iid", client=client, clients=clients, seed=42)
    return client_data(load_heart_disease(standardise="site"), "natural", client=client, clients=clients, seed=42)


def data(job: LocalJob) -> tuple[Split, Split]:
    """The half of this node, and its test part."""
    client, half = int(job.node["partition-id"]), int(job.config["half"])
    whole, test = all_records(str(job.config["data"]), client, int(job.node["num-partitions"]))
    chosen = np.ones(len(whole.x), bool) if half == ALL else members(len(whole.x), half, client)
    return Split(x=whole.x[chosen], y=whole.y[chosen]), test


def initial_model(config: UserConfig) -> nn.Module:
    """The same for every run."""
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        return digits_mlp() if config["data"] == "digits" else logistic_regression(13)


def optimizer(config: UserConfig) -> OptimizerConfig:
    """That of the run config."""
    return OptimizerConfig(lr=float(config["lr"]), momentum=float(config["momentum"]))


app = supervised_app(model=initial_model, optimizer=optimizer, data=data)
server = averaging_server(app)
