"""FedAdam, which has moments to lose, over half of the clients, drawn by Flower."""

import os

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    drawn = 1 if config["repeats"] else int.from_bytes(os.urandom(4), "big")
    strategy = FedAdam(fraction_train=0.5, min_available_nodes=2)
    start = ArrayRecord({"weight": Array(np.zeros(5, np.float32))})
    told = ConfigRecord({"drawn": drawn})
    strategy.start(grid=grid, initial_arrays=start, train_config=told, num_rounds=int(config["num-server-rounds"]))
