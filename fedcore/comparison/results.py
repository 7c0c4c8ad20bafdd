"""The result of one run of one mode, which runners write and reports read.

pydantic reads and writes these dataclasses as JSON. A number that JSON lacks, which a diverged run has, is its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, TypeAdapter
from pydantic_core import to_json
from safetensors import safe_open

from fedcore.system.files import write_file
from fedcore.wire.base import Scalar
from fedcore.wire.events import ExchangeFailed, PrivacyTerms

RESULT_FILE = "result.json"
# JSON has no such numbers; a diverged run has.
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
Value: TypeAlias = Annotated[
    Scalar, BeforeValidator(lambda value: _NOT_FINITE.get(value, value) if isinstance(value, str) else value)
]
"""A scalar that is read back from JSON as it was written, also where it is not finite."""
Metrics: TypeAlias = Mapping[str, float | tuple[float, ...]]
"""Metrics by name; some apps report several numbers under one."""
STRICT = ConfigDict(extra="forbid")
# As safetensors calls them. Counters and the like are no weights.
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One model on the way, evaluated on the test parts of all sites together; in mode `local` the mean of one a site.

    round: 0 for the initial model.
    samples: examples that all workers together trained on up to here, as they were counted; None if nobody counts
        them.
    steps: optimizer steps of one worker up to here, mean over the workers; None if nobody counts them.
    seconds: of training up to here, without evaluation and start.
    simulated_seconds: the same on the clock of the network model, None without one.
    bytes_up, bytes_down: sent and received up to here, mean over the workers.
    metrics: what the evaluation gave, by name; empty if there was none.
    train_loss: mean loss of the examples that this round trained on, as the training reports it; None if it does not.
    """

    round: int
    samples: int | None = 0
    steps: float | None = None
    seconds: float = 0.0
    simulated_seconds: float | None = None
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    train_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteResult:
    """The final model on the test part of one site; in mode `local` the site's own model.

    everywhere: in mode `local`, that model on the test parts of all sites; the curve has their mean.
    """

    site: str
    examples: int
    metrics: Metrics
    everywhere: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How old the model was that each update was computed from: age -> number of updates.

    clocks: what the bound limits. Of a parameter server, steps by which the worker was ahead of the slowest one when it
        read (Ho et al. 2013), and the bound s; of a buffered run, models made since the one that a client trained from,
        and max-staleness.
    updates: updates of others that reached the model meanwhile.
    bound: None for no bound.
    """

    clocks: Mapping[int, int]
    updates: Mapping[int, int]
    bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """Which worker was lost, and what became of the run.

    seconds: from its end until the mode went on, or gave up.
    """

    worker: str
    round: int
    consequence: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SumCheck:
    """One secure sum of a run against the plain mean for the same clients, from the same model.

    mode, seed, point: of the secure run.
    round: in which the sum was made.
    plain: label of the plain run that the mean is from; "" for an extra round of plain, in which nothing is encrypted.
    status: "holds"; "differs" if a tensor exceeds its bound; "unknown" if there was nothing to compare with.
    reason: why it is unknown.
    tensor: the one whose difference is the largest part of its bound.
    difference, bound, change: of that tensor: how far the two means are apart, how far they may be, and how far its
        mean is from the model before; null if unknown.
    by: what these are: "element", the largest of all elements, or "norm", the L2 norm over them.
    own_difference: how far two plain means are apart in that tensor; null if plain was not repeated.
    extra_rounds: how many rounds of plain it took that no run needed.
    last_tensor, last_difference, last_change: of the last models of both runs, the tensor that is the farthest apart
        for its change since the start, both as L2 norms: rounding grows in training, so that nothing bounds it.
    """

    mode: str
    seed: int
    round: int
    status: Literal["holds", "differs", "unknown"]
    point: Mapping[str, Value] = field(default_factory=dict)
    plain: str = ""
    reason: str = ""
    tensor: str = ""
    difference: float | None = None
    bound: float | None = None
    change: float | None = None
    by: Literal["element", "norm"] = "element"
    own_difference: float | None = None
    extra_rounds: int = 0
    last_tensor: str = ""
    last_difference: float | None = None
    last_change: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One value of what is tuned, trained without the validation data and judged on them.

    point: the values that were tried.
    status: "finished", or "failed".
    value: of the metric that models are judged by, on the validation data; null if the trial has none.
    epsilon_spent: by the trial; null without differential privacy, and if it failed before anybody knew.
    """

    point: Mapping[str, Value]
    status: Literal["finished", "failed"] = "finished"
    value: float | None = None
    epsilon_spent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One mode with one seed at one point of a sweep.

    schema: of this form.
    mode, kind, seed: label and kind of the mode, and the seed.
    point: the values of the sweep.
    status: "finished", or "failed" if the mode ended without its last model.
    reason: why it failed.
    aggregation: "secure", "plain" or "none".
    parameters: numbers in the model.
    samples: examples that all workers trained on, repetitions counted; null if not counted, or private.
    reported_examples: of an app's own training loop, whose `samples` nobody counts: what its clients report of all
        trainings together as their `num-examples`, each training once; null if there is no such report, or private.
    steps: optimizer steps by worker.
    sums: for the federated modes, in how many sums of trainings each worker's update was.
    seconds: of training: from the moment when every worker has imported the app, read its data, made its model and
        trained with it once, without evaluations.
    start_seconds: from the beginning of the run up to that moment; null in a simulation, and in reports of versions
        that did not measure it.
    wall_seconds: of the whole run: start, training, evaluation.
    simulated_seconds: on the network model, or null.
    processor_seconds: of all workers and servers together, as the operating system counts them, with what they
        evaluate on the way, but without fedcore's own evaluation of the models; of workers with their start. Null if
        nobody counted them, as in a simulation.
    bytes_up, bytes_down: of training, by worker: of baselines what they send each other, of federated modes the
        requests and answers of training exchanges; of a simulation the encoded updates and models.
    all_bytes_up, all_bytes_down: on the wire in the whole run, by worker: with evaluations, polls, heartbeats, keys,
        TLS, and the headers of TCP and IP; {} if nobody counted them, as in a simulation.
    initial_sha256, model_sha256: of the first model and of the last.
    precision: data types of the trained model.
    curve: after each round: samples, steps and bytes (means over the workers), seconds and metrics, in `local` the mean
        over the sites' models; round 0 is the first model.
    sites: the last model on the test examples of each site; in `local` the site's own, and `everywhere`: on those of
        all sites.
    bootstrap: the last model's metrics on draws of the test examples with replacement, by name; draw b is the same for
        every run that was tested on the same examples. {} if nobody drew any.
    staleness: histograms `clocks` and `updates` by age, and the `bound`; null in other modes.
    losses: workers that were lost, and what followed.
    failures: failed attempts at a round.
    privacy: the terms of differential privacy, with `epsilon_budget`; null without it.
    epsilon_spent: by the run; null without differential privacy.
    by_server: names of the metrics that `evaluate_fn` of the ServerApp returned.
    tuned: the values that were chosen for this run on validation data; {} without `--tune`.
    trials: of these values: what was tried, and what it gave on the validation data.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    schema: Literal["fedcore/compare/run/5"] = "fedcore/compare/run/5"
    mode: str
    kind: str
    seed: int
    point: Mapping[str, Value] = field(default_factory=dict)
    status: Literal["finished", "failed"] = "finished"
    reason: str = ""
    aggregation: str = "none"
    parameters: int = 0
    samples: int | None = None
    reported_examples: int | None = None
    steps: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    start_seconds: float | None = None
    wall_seconds: float = 0.0
    simulated_seconds: float | None = None
    bytes_up: Mapping[str, int] = field(default_factory=dict)
    bytes_down: Mapping[str, int] = field(default_factory=dict)
    all_bytes_up: Mapping[str, int] = field(default_factory=dict)
    all_bytes_down: Mapping[str, int] = field(default_factory=dict)
    processor_seconds: float | None = None
    initial_sha256: str = ""
    model_sha256: str = ""
    precision: str = ""
    curve: tuple[CurvePoint, ...] = ()
    sites: tuple[SiteResult, ...] = ()
    bootstrap: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    staleness: Staleness | None = None
    losses: tuple[LostWorker, ...] = ()
    failures: tuple[ExchangeFailed, ...] = ()
    privacy: PrivacyTerms | None = None
    epsilon_spent: float | None = None
    by_server: tuple[str, ...] = ()
    tuned: Mapping[str, Value] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()

    @property
    def metrics(self) -> Metrics:
        """Of the last model, where it was evaluated."""
        return self.curve[-1].metrics if self.curve else {}

    @property
    def trials_epsilon(self) -> float | None:
        """What the trials spent, their epsilons added; None without differential privacy or trials.

        Each of n trials is private at the delta of the run, and all together at n times that.
        """
        if self.privacy is None or not self.trials:
            return None
        return sum(trial.epsilon_spent or 0.0 for trial in self.trials)

    def save(self, folder: Path) -> None:
        """Write `folder`/result.json atomically."""
        write_file(folder / RESULT_FILE, to_json(self, indent=1, inf_nan_mode="strings") + b"\n")

    @staticmethod
    def load(folder: Path) -> RunResult:
        """Read `folder`/result.json; raises ValueError if it is none of this version."""
        return _RESULT.validate_json((folder / RESULT_FILE).read_bytes())


_RESULT = TypeAdapter(RunResult)


def number_of(metrics: Metrics, name: str) -> float | None:
    """The metric of that name, where it is there and a single number."""
    value = metrics.get(name)
    return None if value is None or isinstance(value, tuple) else float(value)


def stored_precision(folder: Path) -> str:
    """Data types of the weights in every model.safetensors below `folder`, as in "float32"; "" if there is none."""
    dtypes = set()
    for path in folder.rglob("model.safetensors"):
        with safe_open(path, framework="numpy") as file:
            dtypes |= {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    return ", ".join(sorted(_FLOATS[kind] for kind in dtypes & _FLOATS.keys()))


def as_metrics(reported: Mapping[str, Any]) -> dict[str, float | tuple[float, ...]]:
    """What an app reports under each name, a number or a list of numbers."""
    return {name: tuple(map(float, v)) if isinstance(v, list | tuple) else float(v) for name, v in reported.items()}
