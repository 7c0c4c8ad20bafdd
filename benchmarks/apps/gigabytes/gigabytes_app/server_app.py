"""The ServerApp: federated averaging from seeded initial weights."""

from fedcore import averaging_server

from .client_app import app as client

app = averaging_server(client)
