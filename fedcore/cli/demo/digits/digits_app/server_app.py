"""The ServerApp: the strategy of the run config, from seeded initial weights."""

from digits_app.client_app import app as client
from fedcore import averaging_server

app = averaging_server(client)
