"""`fedcore.register`: strategies, engines, modes and trackers of a program, a notebook or an app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from fedcore.errors import UsageError
from fedcore.system.plugins import Registry

Plugin = TypeVar("Plugin", bound=type[Any])


def register(kind: Literal["strategy", "engine", "mode", "tracker"], name: str) -> Callable[[Plugin], Plugin]:
    """A decorator that adds a class to fedcore's own, in this process and in those that import its module.

    >>> @fedcore.register("strategy", "fedavg-decay")
    ... class FedAvgDecay(FedAvgM): ...

    For everybody on a machine, and for commands, declare it in a package: as an entry point of the group
    `fedcore.strategies`, `fedcore.engines`, `fedcore.modes` or `fedcore.trackers`.

    Raises ConfigurationError for a name that another class has.

    Args:
        kind: what the class is. A strategy derives from Flower's FedAvg, an engine from `fedcore.training.Engine`, a
            mode from `fedcore.comparison.modes.Mode`; a tracker has the methods of
            `fedcore.monitoring.trackers.Tracker`.
        name: the name for `--run-config strategy=`, `--engine`, `--modes` or `--track`.
    """
    registry = _registry(kind)

    def add(plugin: Plugin) -> Plugin:
        registry.register(name, plugin)
        return plugin

    return add


def _registry(kind: str) -> Registry[Any]:
    """The registry of a kind; each comes with what its kind needs, which takes time to import."""
    match kind:
        case "strategy":
            from fedcore.flower.strategies.registry import STRATEGIES

            return STRATEGIES
        case "engine":
            from fedcore.run.engine_config import ENGINES

            return ENGINES
        case "mode":
            from fedcore.comparison.modes import MODES

            return MODES
        case "tracker":
            from fedcore.monitoring.trackers import TRACKERS

            return TRACKERS
    raise UsageError(f"there are no plugins of the kind {kind!r}: a strategy, an engine, a mode or a tracker")
