"""The ServerApp: FedAvg."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from survival_app.client_app import app as client

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds with all nodes."""
    config = context.run_config
    strategy = FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    strategy.start(grid=grid, initial_arrays=client.initial_arrays(config), num_rounds=int(config["num-server-rounds"]))
