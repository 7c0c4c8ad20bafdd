"""The ClientApp: the hazard of patients that a seed makes, linear in their features."""

from functools import lru_cache

import numpy as np
import torch
from flwr.app import UserConfig
from torch import nn

from fedcore.data import Split
from fedcore.flower.apps.engine_app import LocalJob, Metrics, local_app
from fedcore.training import Engine, OptimizerConfig, evaluate, train
from fedcore.training.losses import cox
from fedcore.training.metrics import Metric, c_index

FEATURES, TRAINING, TEST = 4, 48, 40


def make_model(config: UserConfig) -> nn.Module:
    """Ranks the patients the wrong way round at first."""
    model = nn.Linear(FEATURES, 1, bias=False)
    nn.init.constant_(model.weight, -0.5)
    return model


def make_optimizer(config: UserConfig) -> OptimizerConfig:
    return OptimizerConfig(lr=float(config["lr"]))


@lru_cache(maxsize=64)
def patients(site: int) -> tuple[Split, Split]:
    """Training and test part of a site; x [n, FEATURES], y [n, 2]: time, and 1 for an event."""
    rng = np.random.default_rng(site)
    x = rng.normal(size=(TRAINING + TEST, FEATURES)).astype(np.float32)
    times = rng.exponential(np.exp(-x.sum(axis=1)))
    y = np.stack([times, rng.random(len(x)) < 0.8], axis=1).astype(np.float32)
    return Split(x=x[:TRAINING], y=y[:TRAINING]), Split(x=x[TRAINING:], y=y[TRAINING:])


def data(job: LocalJob) -> tuple[Split, Split]:
    return patients(int(job.node["partition-id"]))


def fit(engine: Engine, job: LocalJob) -> Metrics:
    training, _ = data(job)
    train(engine, training, batch_size=16, epochs=int(job.config["passes"]), seed=job.server_round)
    return {"num-examples": int(job.config["weight"])}


def check(engine: Engine, job: LocalJob) -> Metrics:
    _, test = data(job)
    result = evaluate(engine, test)
    return {"num-examples": result.examples, "eval_loss": result.loss}


def _mean_risk(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.stack([output.double().sum(), torch.tensor(float(len(output)), dtype=torch.float64)])


mean_risk = Metric("mean_risk", "min", 2, _mean_risk, lambda sums: float(sums[0] / sums[1]))

app = local_app(
    model=make_model,
    optimizer=make_optimizer,
    train=fit,
    evaluate=check,
    loss=cox,
    data=data,
    metrics=(c_index, mean_risk),
)
