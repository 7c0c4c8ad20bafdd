"""The ServerApp: the strategy of the run config, over the adapter alone."""

from fedcore import averaging_server
from lora_app.client_app import app as client

app = averaging_server(client)
