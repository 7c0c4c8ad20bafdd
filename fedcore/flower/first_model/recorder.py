"""The backend of a ServerApp whose first model is wanted, and nothing after it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from flwr.server.server import Server
from flwr.serverapp.strategy import Strategy

from fedcore.errors import AppError
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.state import ModelState
from fedcore.wire.events import FiguresFound
from fedcore.wire.tasks import is_query


class FirstModelRecorder:
    """An `ExchangeBackend` that ends with the first model that it gets.

    nodes
        Ids of the clients that are connected.
    on_model
        Called with the model; it does not return.
    """

    def __init__(self, nodes: Sequence[int], on_model: Callable[[ModelState], NoReturn]) -> None:
        self._nodes = list(nodes)
        self._on_model = on_model

    def nodes(self) -> list[int]:
        """Those that were given."""
        return list(self._nodes)

    def waits(self, nodes: int, setting: str, present: int) -> None:
        """Refuse to wait: nobody else will come. Raises AppError."""
        raise AppError(f"the ServerApp waits for {nodes} nodes, and there are {present}")

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """Take the model; raises AppError for a request without one, which clients would have to answer first."""
        if request.model is None or is_query(request.message_type):
            raise AppError(f"before its first model the ServerApp asks the clients: {request.message_type}")
        self._on_model(request.model)

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """Refused: in plain mode nobody derives a model. Raises AppError."""
        raise AppError("the ServerApp asks single clients")

    def report_figures(self, figures: FiguresFound) -> None:
        """Nobody reads them."""


@contextlib.contextmanager
def no_central_tests() -> Iterator[None]:
    """Within the block no strategy tests its first model where the ServerApp runs: the data for that are the server's.

    A test makes no model. Of Flower's strategies it is the `evaluate_fn` of `Strategy.start`, of the legacy ones
    `Strategy.evaluate`, before the first round.
    """
    start, initial = Strategy.start, Server._get_initial_parameters  # noqa: SLF001 - Flower's own, as in initial_model
    signature = inspect.signature(start)

    def without(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.pop("evaluate_fn", None)
        return start(*bound.args, **bound.kwargs)

    def untested(server: Server, *args: Any, **kwargs: Any) -> Any:
        parameters = initial(server, *args, **kwargs)
        server.strategy.evaluate = lambda *_, **__: None  # type: ignore[method-assign]
        return parameters

    Strategy.start = without  # type: ignore[method-assign]
    Server._get_initial_parameters = untested  # type: ignore[assignment,method-assign]  # noqa: SLF001
    try:
        yield
    finally:
        Strategy.start = start  # type: ignore[method-assign]
        Server._get_initial_parameters = initial  # type: ignore[method-assign]  # noqa: SLF001
