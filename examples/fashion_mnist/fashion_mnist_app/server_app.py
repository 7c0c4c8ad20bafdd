"""The ServerApp: the strategy of the run config, from seeded initial weights."""

from fashion_mnist_app.client_app import app as client
from fedcore import averaging_server
from fedcore.data import load_fashion_mnist

app = averaging_server(client, test=lambda config: load_fashion_mnist().test)
