"""The ServerApp: FedAvg without evaluation under SecAgg+, over a model of any size."""

import numpy as np
from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

# One example each: the smaller this bound, the finer the steps of the quantization.
MAX_WEIGHT = 1.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds with all nodes; the ranges of the quantization are the workflow's own."""
    config = context.run_config
    nodes = int(config["min-nodes"])
    values = np.random.default_rng(0).standard_normal(int(config["parameters"]), dtype=np.float32)
    parts = np.array_split(values, int(config["tensors"]))
    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=nodes,
        min_available_clients=nodes,
        initial_parameters=ndarrays_to_parameters(list(parts)),
    )
    legacy = LegacyContext(
        context=context, config=ServerConfig(num_rounds=int(config["num-server-rounds"])), strategy=strategy
    )
    secure = SecAggPlusWorkflow(
        num_shares=float(config["num-shares"]),
        reconstruction_threshold=float(config["reconstruction-threshold"]),
        max_weight=MAX_WEIGHT,
    )
    DefaultWorkflow(fit_workflow=secure)(grid, legacy)
