"""The ClientApp: adds one constant to every parameter, as noop does; a mod of Flower's masks the result."""

import time

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import NDArrays, Scalar

STEP = 1e-3


class Shift(NumPyClient):
    """Every client by a step of its own, and each counts as one example."""

    def __init__(self, partition: int) -> None:
        self._step = np.float32(STEP * (1 + partition))

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """The least work that still makes an update."""
        print(f"local work begins at {time.time():.3f}", flush=True)
        return [part + self._step for part in parameters], 1, {}


app = ClientApp(
    client_fn=lambda context: Shift(int(context.node_config["partition-id"])).to_client(), mods=[secaggplus_mod]
)
