"""How far decoded means are from exact ones, and secure models from plain ones after whole runs.

    python benchmarks/codec_errors.py [--quick] [--json]

error_over_bound: one exchange, for updates of several shapes: the largest |decoded - exact| over the bound
(fedcore/codec/scaling/error_bound.py), as in benchmarks/codec.py.

run_over_bound: after each of 20 rounds of FedAvg, FedAdam and FedYogi over sites that come and go, with 1 to 1,000
examples: the largest difference between the secure and the plain model, element by element, over the bound that is
carried along the run (benchmarks/codec_runs.py says how). Repeats are exchanges that were asked for again since an
update was too large.

apart, embedding, adamw, integers, float16_over_bound: five exchanges of a run with tensors that differ by 1e9, with an
embedding of which few rows change, with moments and step counters, and with integers and float16 (codec_tensors.py):
the largest error over the bound of its tensor.

neighbour_over_roundoff: a small tensor next to one that changes 10^15 times as much, in a run's third exchange: its
error over the roundoff of float32 in its update, both as L2 norms.

table_accuracy: the accuracy of ten rounds of a network with BatchNorm over raw columns (codec_table.py), secure minus
plain, over five seeds: the largest in size.

outlier_over_update: 20 exchanges, in one of which one element of one client changes by 1e5: the largest error of any
other element in any of them, over the size of a typical update.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.codec_runs import ROUNDS, STORIES, STRATEGIES, compare
from benchmarks.codec_table import difference
from benchmarks.codec_tensors import CASES as TENSOR_CASES
from benchmarks.codec_tensors import worst_ratio
from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from fedcore.codec import (
    CodecSettings,
    Decoded,
    Encoding,
    ScaleTrack,
    decode,
    encode,
)
from fedcore.codec.scaling.error_bound import error_bound_of
from fedcore.codec.scaling.widths import WIDE_BITS, WIDEST_BITS
from fedcore.errors import RoundingTooCoarse, UpdateTooLarge
from fedcore.state import ModelState

WIDTHS = (16, 21, 32)
COHORTS = (8, 100)
W_MAX = 100
STEP = 0.01
"""Size of a typical element of an update."""
SPARSITY = 0.999
MOST_ROUNDS = 16
OUTLIER, OUTLIER_ROUND = 1e5, 6
APART = 1e15
TABLE_AIM = 0.002
OUTLIER_AIM = 1 / 8
"""1/32 of a client's largest element, which is about four times as large as a typical one."""


def _sparse(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Zeros, and now and then an element a hundred times as large as those of the others."""
    return np.where(rng.random(shape) < SPARSITY, 0.0, 100 * rng.standard_normal(shape))


CASES: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]] = {
    "Gaussian": lambda rng, shape: rng.standard_normal(shape),
    "Student t, 2 degrees of freedom": lambda rng, shape: rng.standard_t(2, shape),
    "Cauchy": lambda rng, shape: rng.standard_cauchy(shape),
    "99.9 % zeros": _sparse,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The largest error of one round's decoded state.

    bits, clients: of the round. rounds: how many it took until the peaks were measured. largest_update: largest
    |local - base|. error, bound: absolute.
    """

    bits: int
    clients: int
    rounds: int
    largest_update: float
    error: float
    bound: float

    @property
    def ratio(self) -> float:
        """Error over bound; infinite where something was clipped, for which there is no bound."""
        return self.error / self.bound if math.isfinite(self.bound) else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cohort:
    """The same updates for every round: locals [n] and their examples [n]."""

    base: ModelState
    locals: Sequence[ModelState]
    examples: Sequence[int]

    def round(self, encoding: Encoding) -> Decoded:
        """One round without masks."""
        total = np.zeros(encoding.words, np.uint64)
        for local, count in zip(self.locals, self.examples, strict=True):
            total += encode(
                encoding, base=self.base, local=local, examples=count, metrics={}, randomness=os.urandom
            ).words
        return decode(encoding, total, survivors=len(self.locals), base=self.base)

    def exact(self) -> NDArray[np.float64]:
        """The global model + the weighted mean of local - base, in float64."""
        base = self.base["weight"].astype(np.float64)
        deltas = [local["weight"].astype(np.float64) - base for local in self.locals]
        return base + np.average(deltas, axis=0, weights=self.examples)

    def largest_update(self) -> float:
        """The largest |local - base|."""
        return max(float(np.abs(local["weight"] - self.base["weight"]).max()) for local in self.locals)


def main() -> int:
    """The command line."""
    return run(measure, parser("How far decoded means and secure models are from exact ones.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Single exchanges, and whole runs."""
    errors = [found for case in CASES for found in largest_errors(case, parameters=elements_of(arguments))]
    say("whole runs")
    rows: list[tuple[str, ...]] = []
    worst = 0.0
    rounds = sized(arguments, smallest=2, quick=5, whole=ROUNDS)
    stories = dict(itertools.islice(STORIES.items(), 1 if arguments.smallest else len(STORIES)))
    for (name, story), strategy, bits in itertools.product(stories.items(), STRATEGIES, (16, 32)):
        apart = compare(story, strategy, bits=bits, rounds=rounds)
        worst = max(worst, apart.ratio)
        shown = f"{apart.difference:.2g}", f"{apart.bound:.2g}", f"{apart.ratio:.3f}"
        rows.append((name, strategy, str(bits), str(apart.repeats), *shown))
    tensor_cases = tuple(itertools.islice(TENSOR_CASES, 1 if arguments.smallest else len(TENSOR_CASES)))
    header = ("sites", "strategy", "bits", "repeats", "difference", "bound", "ratio")
    return Report(
        benchmark="codec_errors",
        figures=(
            Figure(name="error_over_bound", value=max(found.ratio for found in errors), aim=1.0),
            Figure(name="run_over_bound", value=worst, aim=1.0),
            *(Figure(name=f"{case}_over_bound", value=tensors_over_bound(case), aim=1.0) for case in tensor_cases),
            Figure(name="neighbour_over_roundoff", value=max(map(neighbour_error, WIDTHS)), aim=1.0),
            Figure(name="table_accuracy", value=largest_difference(arguments), aim=TABLE_AIM),
            Figure(name="outlier_over_update", value=max(map(outlier_error, WIDTHS)) / STEP, aim=OUTLIER_AIM),
        ),
        tables=(Table(title="Secure against plain, where the ratio is largest", header=header, rows=tuple(rows)),),
    )


def tensors_over_bound(case: str) -> float:
    """The largest error over the bound of its tensor, at any width."""
    return max(worst_ratio(case, bits) for bits in WIDTHS)


def largest_difference(arguments: argparse.Namespace) -> float:
    """Between the accuracies of a secure and a plain run."""
    return max(abs(difference(seed)) for seed in range(sized(arguments, smallest=1, quick=2, whole=5)))


def elements_of(arguments: argparse.Namespace) -> int:
    """How many a vector has of which errors are looked for."""
    return sized(arguments, smallest=1_100, quick=2_000, whole=20_000)


def largest_errors(case: str, *, parameters: int, seed: int = 1) -> list[Found]:
    """The errors of one kind of update at every width and cohort size."""
    return [_largest_error(_cohort(case, clients, parameters, seed), bits) for clients in COHORTS for bits in WIDTHS]


def _cohort(case: str, clients: int, parameters: int, seed: int) -> _Cohort:
    rng = np.random.default_rng([seed, clients])
    base = rng.standard_normal(parameters).astype(np.float32)
    deltas = STEP * CASES[case](rng, (clients, parameters))
    return _Cohort(
        base=ModelState.from_arrays({"weight": base}),
        locals=[ModelState.from_arrays({"weight": (base + delta).astype(np.float32)}) for delta in deltas],
        examples=[int(count) for count in rng.integers(1, W_MAX, clients, endpoint=True)],
    )


def _largest_error(cohort: _Cohort, bits: int) -> Found:
    """The error of a round with fields of `bits`, whose scales follow from the rounds before it."""
    clients = len(cohort.locals)
    encoding, rounds = _settled(cohort, CodecSettings(field_bits=bits, w_max=W_MAX))
    try:
        decoded = cohort.round(encoding)
    except RoundingTooCoarse:  # it is asked for again in wider fields
        encoding = dataclasses.replace(
            encoding, field_bits=WIDE_BITS if encoding.field_bits < WIDE_BITS else WIDEST_BITS
        )
        decoded = cohort.round(encoding)
    assert decoded.state is not None
    bound = error_bound_of(encoding, decoded, cohort.base, cohort.locals, cohort.examples)
    error = np.abs(decoded.state["weight"].astype(np.float64) - cohort.exact()).max()
    return Found(
        bits=bits,
        clients=clients,
        rounds=rounds,
        largest_update=cohort.largest_update(),
        error=float(error),
        bound=bound["weight"],
    )


def neighbour_error(bits: int) -> float:
    """The error of the smaller of two small tensors, over the roundoff of float32."""
    rng, sizes = np.random.default_rng(2), {"variance": APART * STEP, "weight": STEP}
    base = ModelState.from_arrays({name: np.zeros(64, np.float32) for name in sizes})
    track = ScaleTrack()
    for _ in range(3):
        locals_ = [
            ModelState.from_arrays({name: rng.normal(0, size, 64).astype(np.float32) for name, size in sizes.items()})
            for _ in range(4)
        ]
        cohort, decoded = _Cohort(base=base, locals=locals_, examples=(10, 20, 30, 40)), None
        while decoded is None:
            encoding = track.encoding(
                CodecSettings(field_bits=bits, w_max=W_MAX), base.layout, 4, metrics=None, failures=0
            )
            try:
                decoded = cohort.round(encoding)
            except UpdateTooLarge as error:
                track.learn_overflow(encoding, error.statistics)
        track.learn(decoded.statistics)
    assert decoded is not None
    assert decoded.state is not None
    exact = cohort.exact()
    return float(np.linalg.norm(decoded.state["weight"] - exact) / np.linalg.norm(exact)) / 2.0**-24


def outlier_error(bits: int) -> float:
    """The largest error of elements that do not change by OUTLIER, in a run in which one does once."""
    usual = _cohort("Gaussian", 4, 2_000, seed=1)
    changed = usual.locals[0]["weight"].copy()
    changed[0] += OUTLIER
    outlying = dataclasses.replace(usual, locals=[ModelState.from_arrays({"weight": changed}), *usual.locals[1:]])
    track, largest = ScaleTrack(), 0.0
    for number in range(1, ROUNDS + 1):
        cohort, decoded = outlying if number == OUTLIER_ROUND else usual, None
        while decoded is None:
            encoding = track.encoding(
                CodecSettings(field_bits=bits, w_max=W_MAX), cohort.base.layout, 4, metrics=None, failures=0
            )
            try:
                decoded = cohort.round(encoding)
            except UpdateTooLarge as error:
                track.learn_overflow(encoding, error.statistics)
            except RoundingTooCoarse as error:
                track.learn_coarse(encoding, error.statistics)
        track.learn(decoded.statistics)
        assert decoded.state is not None
        errors = np.abs(decoded.state["weight"].astype(np.float64) - cohort.exact())
        largest = max(largest, float(errors[1:].max()))
    return largest


def _settled(cohort: _Cohort, settings: CodecSettings) -> tuple[Encoding, int]:
    """The encoding that follows after rounds, also their number, until one has measured the peaks.

    Fields stay wide while magnitudes are not well known; here they get the width of the settings in any case.
    """
    layout, clients = cohort.base.layout, len(cohort.locals)
    track, rounds, settled = ScaleTrack(), 0, False
    while not settled and rounds < MOST_ROUNDS:
        encoding = track.encoding(settings, layout, clients, metrics=None, failures=0)
        rounds += 1
        try:
            statistics = cohort.round(encoding).statistics
        except UpdateTooLarge as error:
            track.learn_overflow(encoding, error.statistics)
            continue
        except RoundingTooCoarse as error:
            statistics = error.statistics
        track.learn(statistics)
        settled = all(statistics.measured)
    encoding = track.encoding(settings, layout, clients, metrics=None, failures=0)
    return dataclasses.replace(encoding, field_bits=settings.field_bits), rounds


if __name__ == "__main__":
    sys.exit(main())
