"""The ServerApp: FedAvg from seeded initial weights."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from femnist_app.client_app import app as client

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; every node trains in each, and evaluates if asked to."""
    config = context.run_config
    nodes = int(config["min-nodes"])
    strategy = FedAvg(
        fraction_evaluate=float(config["fraction-evaluate"]),
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes if config["fraction-evaluate"] else 0,
        min_available_nodes=nodes,
    )
    strategy.start(
        grid=grid,
        initial_arrays=client.initial_arrays(config),
        num_rounds=int(config["num-server-rounds"]),
    )
