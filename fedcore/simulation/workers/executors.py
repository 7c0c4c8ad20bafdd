"""Makes a simulation's executor by name, and sets how many clients a round asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast, get_args

from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp
from fedcore.simulation.workers.executor import ClientExecutor, InlineExecutor
from fedcore.wire.base import Scalar

Engine: TypeAlias = Literal["process", "ray", "inline"]
TRAIN: Final = "fraction-train"
EVALUATE: Final = "fraction-evaluate"


def make_executor(engine: Engine, app: FlowerApp, clients: int, workers: int = 0, at_once: int = 0) -> ClientExecutor:
    """The executor of a simulation; close it.

    Raises ConfigurationError for Ray if it is not installed, and for workers of an engine that has none.

    Args:
        engine: "process", a pool of processes on this machine; "ray", tasks of Ray, on its cluster; "inline", this
            process.
        workers: 0 for as many as there are cores.
    """
    match engine:
        case "process":
            from fedcore.simulation.workers.pool import ProcessExecutor

            return ProcessExecutor(app=app, clients=clients, workers=workers, at_once=at_once)
        case "ray":
            from fedcore.simulation.workers.ray_executor import RayExecutor

            return RayExecutor(app=app, clients=clients, workers=workers, at_once=at_once)
        case "inline":
            if workers > 1:
                raise ConfigurationError(f"workers={workers}: inline runs all clients in this process; use process")
            return InlineExecutor(app=app, clients=clients, at_once=at_once)


def checked_engine(name: str) -> Engine:
    """The engine of that name; raises UnknownKey."""
    if name not in get_args(Engine):
        raise UnknownKey(name, get_args(Engine), "--engine")
    return cast(Engine, name)


def with_cohort(
    config: Mapping[str, Scalar],
    own_values: Mapping[str, object],
    per_round: int | None,
    clients: int,
    *,
    reads: bool = False,
) -> dict[str, Scalar]:
    """A run config by which a round asks `per_round` of the clients for training, and as many for evaluation.

    Raises ConfigurationError if the app has no key for it, or something else was given.

    Args:
        own_values: the user's own values of the run config.
        reads: whether the app reads the keys of `averaging_server`, whatever its run config has.
    """
    if per_round is None:
        return dict(config)
    if not 1 <= per_round <= clients:
        raise ConfigurationError(f"--per-round {per_round}: a round asks 1 client or more, of the {clients} there are")
    if TRAIN in own_values:
        raise ConfigurationError(
            f"--per-round {per_round} and {TRAIN}={own_values[TRAIN]} of the run config say two things"
        )
    if not reads and TRAIN not in config:
        raise ConfigurationError(
            f"--per-round {per_round}: the app's run config has no {TRAIN!r}, so its ServerApp decides alone how many "
            "clients a round asks; let it read that key for its strategy's fraction_train"
        )
    # Strategies take int(clients * fraction): half a client more, so that no rounding makes it one less.
    fraction = min(1.0, (per_round + 0.5) / clients)
    changed: dict[str, Scalar] = {TRAIN: fraction}
    if EVALUATE not in own_values and (reads or config.get(EVALUATE)):
        changed[EVALUATE] = fraction
    return {**config, **changed}
