"""FedAvg over a model of four numbers."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = ArrayRecord([np.zeros(4, np.float32)])
    FedAvg(fraction_evaluate=0.0, min_available_nodes=3, min_train_nodes=3).start(
        grid=grid, initial_arrays=start, num_rounds=int(context.run_config["num-server-rounds"])
    )
