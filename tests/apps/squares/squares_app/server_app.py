"""The ServerApp: the strategy of the run config."""

from fedcore import averaging_server
from squares_app.client_app import app as client

app = averaging_server(client)
