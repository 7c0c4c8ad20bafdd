"""One planned run of one mode, with all that its processes need to know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

from fedcore.comparison.results import RunResult
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.progress_protocol import VALIDATION_VARIABLE
from fedcore.simulation.devices.network import Cost, Network
from fedcore.system.workers.calls import ByImportPath
from fedcore.wire.base import Scalar

MODEL_FILE: Final = "model.safetensors"
"""In the folder of a run that finished: its last model."""
INITIAL_FILE: Final = "initial.safetensors"
"""The model that a run began with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End a worker by SIGKILL.

    A worker of a baseline or of a parameter server waits for its end as soon as it knows that the round is over, so
    that it has no part in what follows. A federated client knows nothing of its end and goes on until it comes: it may
    have a part in later rounds, however many there are until the report has been read here.

    site: from 0 on.
    round: after this round, or as many examples, was reported.
    """

    site: int
    round: int

    def __str__(self) -> str:
        """As on the command line."""
        return f"{worker_name(self.site)}@{self.round}"


class RunMode(Protocol):
    """What those that carry out a run know of its mode, a `fedcore.comparison.modes.Mode`."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def any_app(self) -> bool: ...

    @property
    def tells_events(self) -> bool: ...

    @property
    def private(self) -> bool: ...

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def grows_trees(self) -> bool: ...

    @property
    def follows_rates(self) -> bool: ...

    def lacks(self, *, trees: bool) -> str: ...

    @property
    def in_report(self) -> Any: ...

    @property
    def warm_group(self) -> str: ...

    def warm_processes(self, folder: Path) -> AbstractContextManager[Any]: ...

    def divides_batches(self, options: Mapping[str, Scalar]) -> bool: ...

    def setting_names(self) -> frozenset[str]: ...

    def settings(self, settings: Mapping[str, Any], *, sites: int) -> dict[str, Any]: ...

    def global_batch(self, run: PlannedRun) -> int: ...

    def round_steps(self, run: PlannedRun, schedule: Any) -> float | None: ...

    def train(self, run: PlannedRun, workers: Any, emit: Any, warm: Any) -> Any: ...


if TYPE_CHECKING:
    _SentMode: TypeAlias = RunMode
else:
    # To a worker goes the import path of the mode's class, with the values of its fields.
    _SentMode = ByImportPath


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenMode:
    """A mode as it was asked for."""

    mode: _SentMode
    label: str
    """How it was written, its name in reports."""
    options: Mapping[str, Scalar]
    """Every option, the defaults included."""
    config: Mapping[str, Scalar] = field(default_factory=dict)
    """What it lays over the run config and, for a federated mode, over [tool.fedcore]."""
    keys: frozenset[str] = frozenset()
    """The keys in its brackets."""

    @property
    def kind(self) -> str:
        """The name of the mode."""
        return self.mode.name

    def with_options(self, changes: Mapping[str, Any]) -> Self:
        """The same with other values of some options; raises ConfigurationError for a value that does not fit."""
        read = {key: self.mode.options[key].read(key, value) for key, value in changes.items()}
        return replace(self, options={**self.options, **read})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One mode with one seed at one point of a sweep.

    config: the whole run config, with seed, partition, sweep and what the mode lays over it.
    settings: the same of [tool.fedcore].
    folder: of this run alone, for logs and models.
    network: None for the loopback as it is.
    cost: of computation, if there is a network; the same for all modes.
    validation: the share of the training examples that a trial is judged by, instead of the test part; 0 for a run that
        is judged by its test part.
    """

    app: FlowerApp
    chosen: ChosenMode
    config: Mapping[str, Scalar]
    settings: Mapping[str, Any]
    sites: int
    seed: int
    folder: Path
    point: Mapping[str, Scalar] = field(default_factory=dict)
    network: Network | None = None
    cost: Cost | None = None
    kill: Kill | None = None
    data_dir: Path | None = None
    validation: float = 0.0

    @property
    def warm_group(self) -> str:
        """Runs with the same one, unless it is "", can be served by the same processes."""
        group = self.mode.warm_group
        return f"{group}-validation" if group and self.validation else group

    @property
    def mode(self) -> RunMode:
        """What carries it out."""
        return self.chosen.mode

    @property
    def label(self) -> str:
        """How the mode was written, its name in reports."""
        return self.chosen.label

    @property
    def options(self) -> Mapping[str, Scalar]:
        """Of the mode, the defaults included."""
        return self.chosen.options

    @property
    def site_names(self) -> tuple[str, ...]:
        """Of all sites, in their order."""
        return tuple(worker_name(site) for site in range(self.sites))

    def result(self, **known: Any) -> RunResult:
        """The result of this run, as far as it is known."""
        return RunResult(mode=self.label, kind=self.mode.name, seed=self.seed, point=self.point, **known)

    def lost_after(self, site: int) -> int:
        """The round after which a site's worker waits for its end by SIGKILL, 0 for none."""
        return self.kill.round if self.kill is not None and self.kill.site == site else 0

    def environment(self) -> dict[str, str]:
        """For the processes of the run."""
        environment = {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        # Several workers on one machine: more threads than cores would make each of them slower.
        threads = max(1, (os.cpu_count() or 1) // self.sites)
        environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
        if self.data_dir is not None:
            environment["FEDCORE_DATA"] = str(self.data_dir)
        if self.validation:
            environment[VALIDATION_VARIABLE] = str(self.validation)
        return environment

    def __str__(self) -> str:
        """In a few words."""
        point = "".join(f", {key}={value}" for key, value in self.point.items())
        return f"{'trial of ' if self.validation else ''}{self.label}{point}, seed {self.seed}"


def worker_name(site: int) -> str:
    """The name of a site in reports, the one that provisioning gives."""
    return f"client-{site + 1}"


def site_of(name: str) -> int:
    """The inverse of `worker_name`."""
    return int(name.removeprefix("client-")) - 1
