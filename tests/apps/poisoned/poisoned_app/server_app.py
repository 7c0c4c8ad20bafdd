"""Any of Flower's strategies, without evaluation."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp, strategy

from poisoned_app import DIMENSIONS

app = ServerApp()
ARGUMENTS = {
    "FedTrimmedAvg": {"beta": 0.3},
    "Krum": {"num_malicious_nodes": 2},
    "MultiKrum": {"num_malicious_nodes": 2, "num_nodes_to_select": 3},
    "Bulyan": {"num_malicious_nodes": 1},
}


@app.main()
def main(grid: Grid, context: Context) -> None:
    name = str(context.run_config["strategy"])
    chosen = getattr(strategy, name)(fraction_evaluate=0.0, **ARGUMENTS.get(name, {}))
    initial = ArrayRecord({"weight": Array(np.zeros(DIMENSIONS, np.float32))})
    chosen.start(grid=grid, initial_arrays=initial, num_rounds=int(context.run_config["num-server-rounds"]))
