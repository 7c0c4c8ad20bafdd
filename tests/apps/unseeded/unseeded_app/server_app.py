"""FedAvg from a model of random numbers, tested where the ServerApp runs, on data that no client has."""

import os
import random
import sys

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

AT_IMPORT = torch.rand(2)
WORDS = {"a set", "of texts", "has another", "order", "in every process"}

app = ServerApp()


def central_test(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The ServerApp of a run has a channel to its server; nobody else could give it test data."""
    assert any("server_app.runs" in word for word in sys.orig_argv), "there are no test data here"
    return MetricRecord({"central_loss": 0.5})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    order = [float(len(word)) for word in WORDS]
    drawn = [*AT_IMPORT.tolist(), *torch.randn(3).tolist(), *np.random.normal(size=3), random.random(), *order]
    if config["unrepeatable"]:
        drawn[0] = float(os.urandom(1)[0])
    if config["needs-data"]:
        drawn[1] = float(len(os.environ["FEDCORE_DATA"]))
    weight = np.asarray(drawn, np.float32)
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord({"weight": Array(weight)}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=central_test,
    )
