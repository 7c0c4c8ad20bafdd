"""The ClientApp: one step, and how long it took."""

import time

import numpy as np
from flwr.app import UserConfig
from torch import nn

from fedcore.data import Split
from fedcore.flower.apps.engine_app import LocalJob, Metrics, local_app
from fedcore.training import Engine, OptimizerConfig, train
from fedcore.training.models import mlp

DATA = Split(x=np.zeros((8, 512), np.float32), y=np.zeros(8, np.int64))


def make_model(config: UserConfig) -> nn.Module:
    """793,098 parameters with the width that the app comes with."""
    width = int(config["width"])
    return mlp(512, (width,) * 3, 10)


def fit(engine: Engine, job: LocalJob) -> Metrics:
    """One step, timed."""
    started = time.perf_counter()
    summary = train(engine, DATA, batch_size=8, steps=1, seed=0)
    return {"num-examples": summary.examples, "seconds": time.perf_counter() - started}


app = local_app(model=make_model, optimizer=lambda config: OptimizerConfig(), train=fit, evaluate=fit)
