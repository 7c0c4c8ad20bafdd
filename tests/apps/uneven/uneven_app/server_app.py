"""Any of Flower's strategies, from a model of zeros, without an evaluation."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp, strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    initial = ArrayRecord({"weight": Array(np.zeros(int(config["size"]), np.float32))})
    chosen = getattr(strategy, str(config["strategy"]))(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    chosen.start(grid=grid, initial_arrays=initial, num_rounds=int(config["num-server-rounds"]))
