"""A NumPyClient whose weights follow from its partition alone."""

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp


class Shift(NumPyClient):
    """Adds its share to every weight."""

    def __init__(self, partition: int, raises: bool) -> None:
        self.partition = partition
        self.raises = raises

    def get_parameters(self, config):
        return [np.zeros(4, np.float32), np.zeros((2, 2), np.float32)]

    def fit(self, parameters, config):
        if self.raises:
            raise ValueError("no data here")
        moved = [array + np.float32(0.25 * (self.partition + 1)) for array in parameters]
        return moved, 10 * (self.partition + 1), {"train_loss": 0.5 * self.partition}

    def evaluate(self, parameters, config):
        return float(parameters[0].mean()), 10 * (self.partition + 1), {"accuracy": 0.25}


def client_fn(context: Context) -> Client:
    """The client of this node."""
    return Shift(int(context.node_config["partition-id"]), bool(context.run_config["raises"])).to_client()


app = ClientApp(client_fn=client_fn)
