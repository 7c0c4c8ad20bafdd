"""The ServerApp: FedAvg without evaluation, over a model of any size."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; in each, all nodes are asked, or that fraction of them."""
    config = context.run_config
    nodes = int(config["min-nodes"])
    strategy = FedAvg(
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=0.0,
        min_train_nodes=nodes,
        min_evaluate_nodes=0,
        min_available_nodes=nodes,
    )
    strategy.start(
        grid=grid,
        initial_arrays=model(int(config["parameters"]), int(config["tensors"])),
        num_rounds=int(config["num-server-rounds"]),
    )


def model(parameters: int, tensors: int) -> ArrayRecord:
    """Normal values in `tensors` tensors of nearly equal size, `parameters` elements of float32 together.

    Zeros would not be a model: a client that compresses would send nothing.
    """
    parts = np.array_split(np.random.default_rng(0).standard_normal(parameters, dtype=np.float32), tensors)
    return ArrayRecord({f"block{number}": Array(part) for number, part in enumerate(parts)})
