"""Each strategy of Flower's, by its name in the run config; the clients are those of `quickstart`."""

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as flower

from flower_apps.task import NODES, initial, record_of, report

server = ServerApp()

OPTIONS = {
    "FedProx": {"proximal_mu": 0.25},
    "FedAvgM": {"server_learning_rate": 0.75, "server_momentum": 0.5},
    "Krum": {"num_malicious_nodes": 0},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 2},
    "Bulyan": {"num_malicious_nodes": 0},
    "FedTrimmedAvg": {"beta": 0.25},
    "QFedAvg": {"client_learning_rate": 0.125},
}
NOISE = {"noise_multiplier": 0.5, "num_sampled_clients": NODES}


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    np.random.seed(1)  # Flower draws its noise from here
    result = make(str(config["strategy"])).start(
        grid=grid, initial_arrays=record_of(initial()), num_rounds=int(config["num-server-rounds"])
    )
    report(arrays=result.arrays, trained=result.train_metrics_clientapp, evaluated=result.evaluate_metrics_clientapp)


def make(name: str) -> flower.Strategy:
    """The strategy of that name, over all nodes."""
    everybody = {"min_train_nodes": NODES, "min_evaluate_nodes": NODES, "min_available_nodes": NODES}
    if name.startswith("DifferentialPrivacy"):
        fixed = (
            {"clipping_norm": 0.5} if "Fixed" in name else {"initial_clipping_norm": 0.5, "clipped_count_stddev": 1.0}
        )
        return getattr(flower, name)(flower.FedAvg(**everybody), **NOISE, **fixed)
    return getattr(flower, name)(**everybody, **OPTIONS.get(name, {}))
