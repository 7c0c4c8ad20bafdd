"""The ServerApp: FedAvg or FedAdam over one tensor."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

app = ServerApp()
STRATEGIES = {"fedavg": FedAvg, "fedadam": FedAdam}


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
