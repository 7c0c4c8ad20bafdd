"""A whole comparison as one value: what was asked for, what was compared, and every run; as JSON both ways."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Self

from fedcore.compare.network import Cost, Network
from fedcore.compare.results import RunResult
from fedcore.wire import Scalar

SCHEMA = "fedcore/compare/2"
# JSON has no such numbers; a diverged run has.
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PACKAGES = ("fedcore", "flwr", "torch", "numpy", "cryptography")
_COMPUTED = ("schema", "summary", "fairness")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeTitle:
    """A mode of the comparison. label: as in `RunResult.mode`. kind: a key of `modes.MODES`. title: in a few words."""

    label: str
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSplit:
    """One site's part of the data. labels: training examples by label; None where an example has no single label."""

    site: str
    training: int
    test: int
    labels: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a merged comparison took runs from: what the report with this name said of itself."""

    name: str
    app: str
    sites: int
    partition: str
    seeds: tuple[int, ...]
    run_config: Mapping[str, Scalar]
    settings: Mapping[str, Any]
    network: str
    created: str
    machine: Mapping[str, Any]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that a report is made from.

    partition: how the app divided its data. run_config, settings: of the app, with what was laid over them for all
    modes; seeds, sweeps and options of modes stand in the runs. network: None for the loopback as it is. cost: seconds
    of computation that the simulated clock used. created: ISO 8601, UTC. modes: in the order of the report. split: of
    the first seed. runs: every mode with every seed at every point of a sweep. sources: empty unless several reports
    were laid over one another.
    """

    app: str
    sites: int
    partition: str
    seeds: tuple[int, ...]
    run_config: Mapping[str, Scalar]
    settings: Mapping[str, Any]
    created: str
    machine: Mapping[str, Any]
    modes: tuple[ModeTitle, ...]
    runs: tuple[RunResult, ...]
    network: Network | None = None
    cost: Cost | None = None
    split: tuple[SiteSplit, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def sweeps(self) -> tuple[str, ...]:
        """The keys that were swept, in the order of their first use."""
        return tuple(dict.fromkeys(key for run in self.runs for key in run.point))

    @property
    def simulated(self) -> bool:
        """Whether any run has a simulated clock."""
        return any(run.simulated_seconds is not None for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """As JSON, without what is computed from it."""
        plain = {**dataclasses.asdict(self), "runs": [run.to_json() for run in self.runs]}
        return {"schema": SCHEMA, **to_plain(plain)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`, also of a whole report.json; raises ValueError for another schema."""
        if value.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} document, but {value.get('schema')}")
        fields = {key: item for key, item in value.items() if key not in _COMPUTED}
        fields["seeds"] = tuple(fields["seeds"])
        fields["modes"] = tuple(ModeTitle(**mode) for mode in fields["modes"])
        fields["runs"] = tuple(RunResult.from_json(_from_plain(run)) for run in fields["runs"])
        fields["split"] = tuple(SiteSplit(**site) for site in fields["split"])
        fields["sources"] = tuple(_source(source) for source in fields["sources"])
        if fields["network"] is not None:
            fields["network"] = _network(fields["network"])
        if fields["cost"] is not None:
            fields["cost"] = Cost(**fields["cost"])
        return cls(**fields)


def machine() -> dict[str, Any]:
    """What the figures were made on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in _PACKAGES},
    }


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as JSON has them: keys are strings, numbers that JSON lacks are their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _network(value: Mapping[str, Any]) -> Network:
    slow = {int(site): factor for site, factor in value["slow"].items()}
    return Network(**{**value, "slow": slow, "transient": tuple(value["transient"])})


def _source(value: Mapping[str, Any]) -> Source:
    return Source(**{**value, "seeds": tuple(value["seeds"]), "labels": tuple(value["labels"])})
