"""Any of Flower's strategies over the tiny problem."""

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp, strategy

from tiny_app.problem import initial

app = ServerApp()

EXTRA = {
    "FedProx": {"proximal_mu": 0.1},
    "Krum": {"num_malicious_nodes": 0},
    "MultiKrum": {"num_malicious_nodes": 0, "num_nodes_to_select": 1},
    "Bulyan": {"num_malicious_nodes": 0},
    "QFedAvg": {"client_learning_rate": 0.1},
}


class Personal(strategy.FedAvg):
    """Tells every node something else, which no secure sum can carry."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        for message in super().configure_train(server_round, arrays, config, grid):
            node = message.metadata.dst_node_id
            own = ConfigRecord({**config, "node": node})
            message.content = RecordDict({"arrays": arrays, "config": own})
            yield message


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes, name = int(config["min-nodes"]), str(config["strategy"])
    kind = Personal if config["personal"] else getattr(strategy, name)
    chosen = kind(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes, **EXTRA.get(name, {}))
    arrays = ArrayRecord({key: Array(np.asarray(value)) for key, value in initial().items()})
    chosen.start(grid=grid, initial_arrays=arrays, num_rounds=int(config["num-server-rounds"]))
