"""Arguments of the Python API's calls, converted to the library's types."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedcore.errors import ConfigurationError
from fedcore.run.model_selection import laid_over
from fedcore.run.settings import ROUNDS_KEY, JobSettings
from fedcore.system.assignments import override
from fedcore.wire.base import Scalar
from fedcore.wire.events import EventSink, RunEvent, ignore

if TYPE_CHECKING:
    from fedcore.federation import Policy
    from fedcore.flower.app import FlowerApp

Progress: TypeAlias = bool | Callable[[RunEvent], None]
"""Whether lines are printed while it runs, or what takes the events instead."""

_SEED = "seed"


def chosen_config(
    app: FlowerApp, values: Mapping[str, Scalar] | None, *, rounds: int | None = None, seed: int | None = None
) -> dict[str, Scalar]:
    """The run config of the app with what was given laid over; raises UnknownKey or ConfigurationError."""
    changes = dict(values or {})
    for name, key, value in (("rounds", ROUNDS_KEY, rounds), (_SEED, _SEED, seed)):
        if value is None:
            continue
        if key in changes and changes[key] != value:
            raise ConfigurationError(
                f"{name}={value} and run_config[{key!r}]={changes[key]!r} contradict each other", check="contradiction"
            )
        if key not in app.run_config:
            raise ConfigurationError(
                f"{name}={value} needs the key {key!r} in the run config of {app.name}", check="key-needed"
            )
        changes[key] = value
    return override(app.run_config, changes, "run_config")


def chosen_settings(
    app: FlowerApp, values: Mapping[str, Any] | None, aggregation: Literal["secure", "plain"] | None = None
) -> JobSettings:
    """The settings of the app with what was given laid over; raises UnknownKey or ConfigurationError."""
    changes = settings_mapping(values, aggregation)
    return JobSettings.from_mapping(laid_over(app.settings.to_mapping(), changes), where="settings")


def settings_mapping(values: Mapping[str, Any] | None, aggregation: str | None) -> dict[str, Any]:
    """The settings that were given, with `aggregation`; tuples as lists, as in TOML."""
    changes = {key: list(value) if isinstance(value, tuple) else value for key, value in (values or {}).items()}
    if aggregation is not None:
        if changes.get("aggregation", aggregation) != aggregation:
            raise ConfigurationError(f"aggregation={aggregation!r} and settings['aggregation'] contradict each other")
        changes["aggregation"] = aggregation
    return changes


def policy_of(policy: Policy | str | Path | None, clients: int) -> Policy | None:
    """A policy by the name of a ready one, or out of a policy.toml; None for the simulator's own. Raises KitError."""
    from fedcore.federation import Policy

    if policy is None or isinstance(policy, Policy):
        return policy
    return Policy.ready(str(policy), clients) or Policy.load(Path(policy).expanduser())


@contextlib.contextmanager
def data_folder(folder: str | Path | None) -> Iterator[None]:
    """Let FEDCORE_DATA name this folder until the end of the block; None to leave it."""
    if folder is None:
        yield
        return
    before = os.environ.get("FEDCORE_DATA")
    os.environ["FEDCORE_DATA"] = str(Path(folder).expanduser().absolute())
    try:
        yield
    finally:
        if before is None:
            del os.environ["FEDCORE_DATA"]
        else:
            os.environ["FEDCORE_DATA"] = before


@contextlib.contextmanager
def progress_sink(progress: Progress, label: str, *, clients: int = 0) -> Iterator[EventSink]:
    """What takes the events of a run: the view of the commands, a function of the caller's, or nothing.

    In a notebook lines go to standard output, since a notebook marks the other one as trouble.
    """
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield ignore
    else:
        from rich.console import Console

        from fedcore.monitoring.progress import ProgressView

        file = sys.stdout if Console().is_jupyter else sys.stderr
        with ProgressView(Console(file=file, force_jupyter=False), label, clients=clients) as view:
            yield view.show
