"""Threads of this process in the place of Ray's actors, under Flower's own simulation: for a machine too busy for Ray.

One for each node, so that a client that waits keeps no other from answering, as on machines of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException
from flwr.server.superlink.fleet.vce.backend import Backend, raybackend


class Threads(Backend):
    """Calls the ClientApp in the thread that Flower's engine has for a message."""

    workers = 1

    def __init__(self, backend_config: Any) -> None:
        """As Flower makes its backend."""
        self._app: ClientApp | None = None

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        """Load the ClientApp, once for all threads: Flower imports its module again each time."""
        self._app = app_fn()

    @property
    def num_workers(self) -> int:
        """How many messages are answered at once."""
        return self.workers

    def is_worker_idle(self) -> bool:
        """Each thread of the engine is its own worker."""
        return True

    def terminate(self) -> None:
        """Nothing runs on."""

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """The reply; raises what Flower's engine makes an error reply of."""
        assert self._app is not None
        try:
            return self._app(message, context), context
        except Exception as error:
            raise ClientAppException(str(error)) from error


def use_threads(nodes: int) -> None:
    """For all simulations of this process."""
    Threads.workers = nodes
    raybackend.RayBackend = Threads
