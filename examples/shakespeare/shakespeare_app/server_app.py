"""The ServerApp: FedAvg from seeded initial weights."""

import random

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcore.training import derive_seed
from shakespeare_app.client_app import app as client

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; a fraction of the nodes trains in each, and evaluates after it."""
    config = context.run_config
    nodes = int(config["min-nodes"])
    # FedAvg draws the nodes of a round from Python's own generator.
    random.seed(derive_seed("sampled nodes", int(config["seed"])))
    strategy = FedAvg(
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=float(config["fraction-evaluate"]),
        min_train_nodes=1,
        min_evaluate_nodes=1 if config["fraction-evaluate"] else 0,
        min_available_nodes=nodes,
    )
    strategy.start(
        grid=grid,
        initial_arrays=client.initial_arrays(config),
        num_rounds=int(config["num-server-rounds"]),
    )
