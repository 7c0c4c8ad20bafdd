"""A whole comparison as one value: settings, modes and every run.

pydantic writes and reads these dataclasses as JSON (`fedcore.comparison.report.files`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.results import STRICT, RunResult, SumCheck, Value
from fedcore.comparison.target import Target
from fedcore.simulation.devices.network import Cost, Network

_PACKAGES = ("fedcore", "flwr", "torch", "numpy", "cryptography")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeTitle:
    """A mode of the comparison.

    label: as in `RunResult.mode`.
    kind: a key of `modes.MODES`.
    title: in a few words.
    simulation: whether its runs were simulated in memory; otherwise processes exchanged bytes.
    own_evaluation: whether its metrics alone are those of the app's own evaluation, in a report of several.
    """

    label: str
    kind: str
    title: str
    simulation: bool = False
    own_evaluation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSplit:
    """One site's part of the data.

    training_bytes: of the training examples as arrays, which pooling them would take; None if unknown.
    labels, test_labels: training and test examples by label; None if an example has no single label, or nobody counted
        them.
    """

    site: str
    training: int
    test: int
    labels: Mapping[str, int] | None = None
    test_labels: Mapping[str, int] | None = None
    training_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedReport:
    """What one of several merged reports said of itself.

    labels: of its runs in the merged report.
    """

    name: str
    app: str
    sites: int
    partition: str
    seeds: tuple[int, ...]
    run_config: Mapping[str, Value]
    settings: Mapping[str, Any]
    network: str
    created: str
    machine: Mapping[str, Any]
    metric: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that a report is made from.

    schema: of this form.
    app: name of the app.
    sites: number of sites.
    partition: how the app divided its data.
    seeds: of all runs.
    run_config: of the app, with the changes for all modes.
    settings: `[tool.fedcore]`, with the changes for all modes.
    changed: keys of both that differ from the app or from fedcore's defaults.
    created: ISO 8601, UTC.
    machine: system, Python, cores and versions of packages.
    modes: label, kind and title of each mode, in the order of the report.
    runs: every mode with every seed at every point of a sweep.
    judged_by: the metric that models are judged by, and whether "max" or "min" is better; null if unknown.
    own_evaluation: whether the metrics are those of the app's own evaluation; otherwise every model was evaluated in
        the same way, on the same examples.
    network: the network model; null for this machine as it is.
    cost: seconds of computation for the simulated clock, or null.
    split: training and test examples of each site for the first seed, and its labels if an example has one.
    sources: the heads of several merged reports; else empty.
    left_out: the modes that `--modes all` did not take, and why.
    target: how good a model had to be: metric, value and better; null without one.
    definitions: of metrics by name, a sentence each, as far as anybody wrote one down.
    sum_checks: secure sums against plain means.
    watts: of one core, for an estimate of energy; null without one.
    budget: of what all modes have equally much, as `--budget` names it; "" for examples, with equal steps next to them.
    tune: the values of which each mode's own was chosen on validation data, by key.
    validation: the share of each site's training examples that were validation data; null without `tune`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    schema: Literal["fedcore/compare/7"] = "fedcore/compare/7"
    app: str
    sites: int
    partition: str
    seeds: tuple[int, ...]
    run_config: Mapping[str, Value]
    settings: Mapping[str, Any]
    changed: tuple[str, ...] = ()
    created: str
    machine: Mapping[str, Any]
    modes: tuple[ModeTitle, ...]
    runs: tuple[RunResult, ...]
    judged_by: JudgedBy | None = None
    own_evaluation: bool = False
    network: Network | None = None
    cost: Cost | None = None
    split: tuple[SiteSplit, ...] = ()
    sources: tuple[MergedReport, ...] = ()
    left_out: tuple[str, ...] = ()
    target: Target | None = None
    definitions: Mapping[str, str] = field(default_factory=dict)
    sum_checks: tuple[SumCheck, ...] = ()
    watts: float | None = None
    budget: str = ""
    tune: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    validation: float | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the modes."""
        return tuple(mode.label for mode in self.modes)

    @property
    def apps(self) -> dict[str, tuple[str, ...]]:
        """The labels of the modes of each app, if the report is of several; else empty."""
        apps: dict[str, tuple[str, ...]] = {}
        for source in self.sources:
            apps[source.app] = (*apps.get(source.app, ()), *source.labels)
        return apps if len(apps) > 1 else {}

    @property
    def divided(self) -> str:
        """Into what, and how as far as the app lets one choose."""
        sites = " or ".join(map(str, self._numbers_of_sites))
        what = f"{sites} simulated clients" if self.is_simulation else f"{sites} sites"
        return what + (f", partition {self.partition}" if self.partition else "")

    @property
    def _numbers_of_sites(self) -> list[int]:
        return sorted({source.sites for source in self.sources} or {self.sites})

    @property
    def simulations(self) -> tuple[str, ...]:
        """The labels of the modes that were simulated in memory."""
        return tuple(mode.label for mode in self.modes if mode.simulation)

    @property
    def is_simulation(self) -> bool:
        """Whether nothing else than simulations is in it."""
        return bool(self.modes) and self.simulations == self.labels

    @property
    def sweeps(self) -> tuple[str, ...]:
        """The keys that were swept, in the order of their first use."""
        return tuple(dict.fromkeys(key for run in self.runs for key in run.point))

    @property
    def simulated(self) -> bool:
        """Whether any run has a simulated clock."""
        return any(run.simulated_seconds is not None for run in self.runs)


def machine() -> dict[str, Any]:
    """The machine and the versions of what ran on it."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in _PACKAGES},
    }
