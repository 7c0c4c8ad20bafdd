"""What one run of one mode leaves behind, as plain JSON: the common ground of runners and reports."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from safetensors import safe_open

from fedcore.wire import Scalar

SCHEMA = "fedcore/compare/run/1"
RESULT_FILE = "result.json"
# As safetensors calls them. Counters and the like are no weights.
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One model on the way, evaluated on the test parts of all sites together.

    round: 0 for the initial model. samples: examples that all workers together trained on up to here. seconds: of
    training up to here, without evaluation and the start of processes. simulated_seconds: the same on the clock of the
    network model, None without one. bytes_up, bytes_down: sent and received up to here, mean over the workers.
    loss, accuracy: weighted as the app weighs them; None where they are not known.
    """

    round: int
    samples: int
    seconds: float
    simulated_seconds: float | None
    bytes_up: float
    bytes_down: float
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteResult:
    """The final model on the test part of one site; in mode `local` the site's own model."""

    site: str
    examples: int
    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How old the model was that each update of a parameter server was computed from: age -> number of updates.

    clocks: steps by which the worker was ahead of the slowest one when it read (what the bound s limits; Ho et al.
    2013). updates: updates of others that reached the model between its pull and its push. bound: s; None for no bound.
    """

    clocks: Mapping[int, int]
    updates: Mapping[int, int]
    bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A worker that was lost, and what became of the run. seconds: from its end until the mode went on, or gave up."""

    worker: str
    round: int
    consequence: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One mode with one seed at one point of a sweep.

    mode: its label. point: the values of the sweep. status: "failed" with a reason where the mode ended without its
    last model. steps: optimizer steps by worker. bytes_up, bytes_down: on the wire in the whole run, by worker.
    seconds: training alone; wall_seconds: with the start of all processes and the evaluation. initial_sha256: of the
    model that it began with; model_sha256: that it ended with. sites: by site, the final model. losses: workers that
    were lost. failures: attempts at a round that failed. privacy: plan and epsilon, None without differential privacy.
    precision: data types of the trained model, as in its file.
    """

    mode: str
    kind: str
    seed: int
    point: Mapping[str, Scalar] = field(default_factory=dict)
    status: Literal["finished", "failed"] = "finished"
    reason: str = ""
    aggregation: str = "none"
    parameters: int = 0
    samples: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    wall_seconds: float = 0.0
    simulated_seconds: float | None = None
    bytes_up: Mapping[str, int] = field(default_factory=dict)
    bytes_down: Mapping[str, int] = field(default_factory=dict)
    initial_sha256: str = ""
    model_sha256: str = ""
    precision: str = ""
    curve: tuple[Point, ...] = ()
    sites: tuple[SiteResult, ...] = ()
    staleness: Staleness | None = None
    losses: tuple[Loss, ...] = ()
    failures: tuple[Mapping[str, Any], ...] = ()
    privacy: Mapping[str, Any] | None = None

    @property
    def accuracy(self) -> float | None:
        """Of the last model that was evaluated."""
        return self.curve[-1].accuracy if self.curve else None

    @property
    def loss(self) -> float | None:
        """Of the last model that was evaluated."""
        return self.curve[-1].loss if self.curve else None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, with the name of its schema."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; raises ValueError for another schema."""
        fields = dict(value)
        if fields.pop("schema", None) != SCHEMA:
            raise ValueError(f"not a {SCHEMA} document")
        fields["curve"] = tuple(Point(**point) for point in fields["curve"])
        fields["sites"] = tuple(SiteResult(**site) for site in fields["sites"])
        fields["losses"] = tuple(Loss(**loss) for loss in fields["losses"])
        fields["failures"] = tuple(fields["failures"])
        if fields["staleness"] is not None:
            fields["staleness"] = _staleness(fields["staleness"])
        return cls(**fields)

    def save(self, folder: Path) -> None:
        """Write `folder`/result.json, whole or not at all."""
        draft = folder / f".{RESULT_FILE}"
        draft.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        os.replace(draft, folder / RESULT_FILE)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read `folder`/result.json."""
        return cls.from_json(json.loads((folder / RESULT_FILE).read_text(encoding="utf-8")))


def stored_precision(folder: Path) -> str:
    """Data types of the weights in every model.safetensors below `folder`, as in "float32"; "" where there is none."""
    found = set()
    for path in folder.rglob("model.safetensors"):
        with safe_open(path, framework="numpy") as file:
            found |= {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    return ", ".join(sorted(_FLOATS[kind] for kind in found & _FLOATS.keys()))


def _staleness(value: Mapping[str, Any]) -> Staleness:
    return Staleness(
        clocks={int(age): count for age, count in value["clocks"].items()},
        updates={int(age): count for age, count in value["updates"].items()},
        bound=value["bound"],
    )
