"""The ServerApp: grows a tree in each round."""

from fedcore import trees_server
from trees_app.client_app import app as client

app = trees_server(client)
"""It asks the sites for sums alone."""
