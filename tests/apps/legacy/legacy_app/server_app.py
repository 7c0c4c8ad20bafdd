"""A server_fn as Flower's templates had it."""

import numpy as np
from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server import strategy as strategies
from flwr.serverapp import ServerApp


def server_fn(context: Context) -> ServerAppComponents:
    """A strategy and its rounds."""
    config = context.run_config
    initial = ndarrays_to_parameters([np.zeros(4, np.float32), np.zeros((2, 2), np.float32)])
    nodes = int(config["min-nodes"])
    strategy = getattr(strategies, str(config["strategy"]))(
        initial_parameters=initial if config["initial"] else None,
        min_available_clients=nodes,
        min_fit_clients=nodes,
        min_evaluate_clients=nodes,
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=int(config["num-server-rounds"])))


app = ServerApp(server_fn=server_fn)
