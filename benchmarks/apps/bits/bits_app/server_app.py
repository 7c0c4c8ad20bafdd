"""The median over groups: who is with whom decides it."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedMedian

from .client_app import COLUMNS

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A run."""
    nodes = int(context.run_config["min-nodes"])
    strategy = FedMedian(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)
    arrays = ArrayRecord({"weight": Array(np.zeros(COLUMNS, np.float32))})
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=int(context.run_config["num-server-rounds"]))
