"""The ServerApp: FedAvg from seeded initial weights."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fashion_mnist_app.client_app import app as client

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; every node trains and evaluates in each."""
    config = context.run_config
    nodes = int(config["min-nodes"])
    strategy = FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)
    strategy.start(
        grid=grid,
        initial_arrays=client.initial_arrays(config),
        num_rounds=int(config["num-server-rounds"]),
    )
