"""The ServerApp: asks for the statistics of the columns once, then runs the strategy of the run config."""

from air_app.client_app import app as client
from fedcore import averaging_server

app = averaging_server(client)
