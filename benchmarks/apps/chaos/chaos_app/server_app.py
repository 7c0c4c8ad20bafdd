"""The ServerApp: a strategy that uses the mean alone, over one tensor."""

from collections.abc import Callable
from functools import partial

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

app = ServerApp()
TAU = 0.1
"""Far above its default of 0.001, with which a step of an adaptive strategy is nearly the same whatever the mean is."""
STRATEGIES: dict[str, Callable[..., FedAvg]] = {
    "fedavg": FedAvg,
    "fedavgm": partial(FedAvgM, server_momentum=0.5),
    "fedadam": partial(FedAdam, tau=TAU),
    "fedadagrad": partial(FedAdagrad, tau=TAU),
    "fedyogi": partial(FedYogi, tau=TAU),
}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; every node is asked in each."""
    config = context.run_config
    nodes = int(config["min-nodes"])
    strategy = STRATEGIES[str(config["strategy"])](
        fraction_evaluate=0.0, min_train_nodes=nodes, min_evaluate_nodes=0, min_available_nodes=nodes
    )
    initial = ArrayRecord({"digits": Array(np.zeros(int(config["elements"]), np.float32))})
    strategy.start(grid=grid, initial_arrays=initial, num_rounds=int(config["num-server-rounds"]))
