"""A run that starts from a model which its operator names, in place of the one that the app's ServerApp makes.

Flower's Grid never learns what a strategy starts from, so for the duration of a run the two functions that do are
replaced: `Strategy.start`, and the legacy Server's `_get_initial_parameters`. Everything after that is Flower's, an
evaluation before round 1 included. Only the first start counts: a second one goes on from what the app made of the
first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord
from flwr.common import Parameters
from flwr.compat.common import recorddict_compat as compat
from flwr.server.server import Server
from flwr.serverapp.strategy import Strategy

from fedcore.errors import ConfigurationError, EncodingError
from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.flower.records import arrays_from_state, state_from_arrays
from fedcore.state import ModelState


@contextmanager
def starting_from(model: ModelState | None, grid: ExchangeGrid) -> Iterator[None]:
    """Let the first strategy that uses `grid` start from `model`; None for the app's own.

    The start raises ConfigurationError if the app's own model has other tensors. Until it came, `grid` refuses to
    send anything but queries.
    """
    if model is None:
        yield
        return
    grid.awaits_start, grid.initial = True, model
    start, legacy = Strategy.start, Server._get_initial_parameters  # noqa: SLF001 - Flower's, see above
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (Strategy, "start", _start(start, model, grid)),
        (Server, "_get_initial_parameters", _initial_parameters(legacy, model, grid)),
    )
    for kind, name, function in replaced:
        setattr(kind, name, function)
    try:
        yield
    finally:
        Strategy.start, Server._get_initial_parameters = start, legacy  # type: ignore[method-assign]  # noqa: SLF001


def _start(original: Callable[..., Any], model: ModelState, grid: ExchangeGrid) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def start(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if grid.awaits_start:
            own = bound.arguments["initial_arrays"]
            bound.arguments["initial_arrays"] = _replacement_for(own, model)
            grid.awaits_start = False
        return original(*bound.args, **bound.kwargs)

    return start


def _initial_parameters(original: Callable[..., Any], model: ModelState, grid: ExchangeGrid) -> Callable[..., Any]:
    def get(server: Server, server_round: int, timeout: float | None) -> Parameters:
        if not grid.awaits_start:
            parameters: Parameters = original(server, server_round, timeout)
            return parameters
        # A strategy without parameters of its own would ask a client for them; no client need be asked now.
        own = server.strategy.initialize_parameters(client_manager=server._client_manager)  # noqa: SLF001
        arrays = arrays_from_state(model)
        if own is not None:
            arrays = _replacement_for(compat.parameters_to_arrayrecord(own, keep_input=True), model)
        grid.awaits_start = False
        return compat.arrayrecord_to_parameters(arrays, keep_input=True)

    return get


def _replacement_for(own: ArrayRecord, model: ModelState) -> ArrayRecord:
    """The model in the order of the app's own; raises ConfigurationError that names what differs."""
    ours, theirs = state_from_arrays(own).layout, model.layout
    names, others = ({spec.name for spec in layout.specs} for layout in (ours, theirs))
    for missing, what in ((names - others, "lacks the tensor"), (others - names, "has a tensor that the app lacks:")):
        if missing:
            raise ConfigurationError(
                f"the initial model {what} {min(missing)!r}; is it a model of this app?", check="tensors-differ"
            )
    ordered = model.renamed({spec.name: spec.name for spec in ours.specs})
    try:
        ours.check_same(ordered.layout, what="the initial model")
    except EncodingError as error:
        raise ConfigurationError(str(error)) from None
    return arrays_from_state(ordered)
