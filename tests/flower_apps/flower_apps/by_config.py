"""Any of the apps, as the run config names it, so that one federation of real processes can run one after the other."""

import importlib
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()


class Chosen(ClientApp):
    """Hands every message to the ClientApp that the run is about."""

    def __call__(self, message: Message, context: Context) -> Message:
        app: ClientApp = part(context.run_config["client"])
        return app(message, context)


client = Chosen()


@server.main()
def main(grid: Grid, context: Context) -> None:
    part(context.run_config["server"])(grid, context)


def part(name: Any) -> Any:
    """`module:attribute` of this package."""
    module, _, attribute = str(name).partition(":")
    return getattr(importlib.import_module(f"flower_apps.{module}"), attribute)
