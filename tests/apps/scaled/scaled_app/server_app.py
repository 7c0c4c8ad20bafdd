"""FedAvg, after one question."""

from fedcore import averaging_server
from scaled_app.client_app import app as client

app = averaging_server(client)
