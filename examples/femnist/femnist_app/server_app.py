"""The ServerApp: the strategy of the run config, from seeded initial weights."""

from fedcore import averaging_server
from fedcore.data import load_femnist
from femnist_app.client_app import app as client

app = averaging_server(client, test=lambda config: load_femnist().test)
