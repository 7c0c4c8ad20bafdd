"""The ServerApp: the strategy of the run config, from seeded initial weights."""

from fedcore import averaging_server
from shakespeare_app.client_app import app as client
from shakespeare_app.task import whole

app = averaging_server(client, test=lambda config: whole().test)
