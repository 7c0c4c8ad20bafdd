"""Both apps: FedAvg over clients that take a few steps, in which the chosen rank fails in the chosen way."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedcore.data import Split
from fedcore.flower.apps.engine_app import LocalJob, Metrics, local_app
from fedcore.training import Engine, OptimizerConfig, train
from fedcore.training.models import mlp

DATA = Split(x=np.zeros((64, 32), np.float32), y=np.zeros(64, np.int64))
STEPS = 8


def make_model(config: UserConfig) -> nn.Module:
    """1,386 parameters."""
    return mlp(32, (32,), 10)


class Deadly(Dataset[tuple[Tensor, Tensor]]):
    """Data whose loader process dies."""

    def __init__(self, note: str) -> None:
        self._note = note

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        write_time(self._note)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def fit(engine: Engine, job: LocalJob) -> Metrics:
    """Eight steps."""
    failure = str(job.config["failure"])
    chosen = engine.world.rank == int(job.config["rank"])
    if failure and chosen and job.server_round == 1 and job.node["partition-id"] == 0:
        fail(engine, failure, str(job.config["note"]))
    summary = train(engine, DATA, batch_size=8, steps=STEPS, seed=0)
    return {"num-examples": summary.examples}


def fail(engine: Engine, failure: str, note: str) -> None:
    """Fail now, or make sure that the training after this does."""
    if failure == "kill in the backward pass":
        parameter = engine.parameters()[0]
        parameter.register_post_accumulate_grad_hook(lambda _: die(note))  # type: ignore[no-untyped-call]
        return
    if failure == "death of a loader process":
        train(engine, Deadly(note), batch_size=8, steps=STEPS, seed=0, workers=1)
    if failure == "exception after a collective":
        for batch in engine.batches(DATA, batch_size=8, steps=1, seed=0):
            engine.step(batch)
    write_time(note)
    if failure == "hang":
        time.sleep(3600)
    if failure == "out of memory":
        torch.empty(2**58)
    raise ValueError(failure)


def die(note: str) -> None:
    """End this process as the kernel does it."""
    write_time(note)
    os.kill(os.getpid(), signal.SIGKILL)


def write_time(note: str) -> None:
    """When it happened."""
    Path(note).write_text(repr(time.time()))


app = local_app(model=make_model, optimizer=lambda config: OptimizerConfig(), train=fit, evaluate=fit)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds with all nodes, without evaluation."""
    config = context.run_config
    nodes = int(config["min-nodes"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_evaluate_nodes=0, min_available_nodes=nodes)
    strategy.start(grid=grid, initial_arrays=app.initial_arrays(config), num_rounds=int(config["num-server-rounds"]))
