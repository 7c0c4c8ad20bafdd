"""There is nothing to train."""

from flwr.serverapp import ServerApp

app = ServerApp()
