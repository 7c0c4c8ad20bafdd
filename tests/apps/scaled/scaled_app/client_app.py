"""Linear regression on two columns of different sizes, standardised over the federation before it trains."""

import numpy as np
from flwr.app import UserConfig
from torch import nn

from fedcore import LocalJob, supervised_app
from fedcore.data import Split
from fedcore.flower.apps.statistics import TrainingColumns, standardised
from fedcore.training import OptimizerConfig, seeded
from fedcore.training.losses import squared_error

NAMES = ("height", "weight")
BOUNDS = {"height": (100.0, 220.0), "weight": (0.0, 200.0)}


def raw(partition: int) -> tuple[np.ndarray, np.ndarray]:
    """One client's rows: heights with gaps, weights, and a target."""
    chance = np.random.default_rng(partition)
    height = chance.normal(160 + 8 * partition, 9, 30 + partition)
    weight = chance.normal(60 + 4 * partition, 12, 30 + partition)
    target = (0.1 * height - 0.05 * weight)[:, None].astype(np.float32)
    height[:3] = np.nan
    return np.stack([height, weight], axis=1), target


def data(job: LocalJob) -> tuple[Split, Split]:
    x, y = raw(int(job.node["partition-id"]))
    split = Split(x=standardised(x, job.message, NAMES), y=y)
    return split, split


def model(config: UserConfig) -> nn.Module:
    with seeded(int(config["seed"])):
        return nn.Linear(2, 1)


app = supervised_app(
    model=model,
    optimizer=lambda config: OptimizerConfig(lr=float(config["lr"])),
    data=data,
    loss=squared_error,
    columns=TrainingColumns(names=NAMES, bounds=lambda config: BOUNDS),
)
