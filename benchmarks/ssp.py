"""Stale synchronous training: time to a target against the bound s, without stragglers and with them.

    python benchmarks/ssp.py [--quick] [--json]

The digits app over four workers and a parameter server (`fedcore.comparison.parameter_server`), all real processes, on
the
simulated clock of `fedcore.compare`: a step takes 10 ms, the network is the preset `lan`. s = 0 lets nobody run ahead,
s = inf lets everybody (Ho et al. 2013). Stragglers are transient (each step takes ten times as long with a chance of
5 %) or permanent (one worker is four times slower). The target is a test accuracy; the time to it is interpolated
between the models that were evaluated, one for every 320 examples.

Then the simulated clock is set against a real one: three workers that sleep, one of them four times slower, and the
updates a second that the server makes. The clock leaves out what the software itself takes, some milliseconds for each
step on a busy machine: with steps of 10 ms that shows, and the figure is for steps of 40 ms.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import EXAMPLES, Figure, Report, Table, mean_and_spread, parser, run, say
from fedcore.comparison.execution import execute_run
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.modes.parameter_server import ParameterServer
from fedcore.comparison.results import CurvePoint, RunResult, Staleness, number_of
from fedcore.comparison.run import PlannedRun
from fedcore.errors import RunFailed
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Cost, Network
from fedcore.wire.base import Scalar
from fedcore.wire.events import ignore

WORKERS: Final = 4
STEP: Final = 0.01
TARGET: Final = 0.9
SEEDS: Final = (42, 43, 44)
BOUNDS: Final = (0.0, 1.0, 3.0, 8.0, math.inf)
SCENARIOS: Final = {"no stragglers": "", "transient": ",transient=0.05:10", "one permanent": ",slow=2:4"}
STUDY: Final = {"num-server-rounds": 30, "local-steps": 5, "lr": 0.1, "momentum": 0.0}
"""Momentum adds up the steps of stale gradients: the study is of plain SGD, as the paper's analysis."""

SLEEPERS: Final = {
    "ps-sync": "ps-sync[global-batch=48]",
    "ps-ssp, s = 8": "ps-ssp[s=8]",
    "ps-async": "ps-async",
}
SLEEP: Final = {"num-server-rounds": 8, "local-steps": 10}
SLEEP_STEPS: Final = (0.01, 0.04)
SLEEP_NETWORK: Final = "bandwidth=10Gbit,latency=0.05ms,slow=1:4"
# While all still work: the slowest has then made half of its steps at most.
SLEEP_FROM, SLEEP_TO = 1, 5
CLOCK_AIM: Final = 0.15

Results = Mapping[tuple[str, float], Sequence[RunResult]]
"""Scenario and bound -> one result for each seed."""
Rates = Mapping[tuple[float, str], tuple[float, float]]
"""Seconds of a fast worker's step, and mode -> updates a second, simulated and slept."""


def main() -> int:
    """The command line."""
    return run(measure, parser("Time to a target against the bound on staleness.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All scenarios, bounds and seeds; in the quick mode some of them, and no sleeping workers."""
    quick = arguments.quick
    bounds, seeds = ((0.0, 3.0, math.inf), SEEDS[:1]) if quick else (BOUNDS, SEEDS)
    config = {**STUDY, "num-server-rounds": 2} if arguments.smallest else STUDY
    scenarios = ["transient"] if quick else list(SCENARIOS)
    results: dict[tuple[str, float], list[RunResult]] = {}
    for scenario in scenarios:
        for bound in bounds:
            for seed in seeds:
                say(f"{scenario}, s = {bound:g}, seed {seed}")
                results.setdefault((scenario, bound), []).append(study(scenario, bound, seed, config))
    rates: dict[tuple[float, str], tuple[float, float]] = {}
    for step in () if quick else SLEEP_STEPS:
        rates.update({(step, name): rates_of(word, step) for name, word in SLEEPERS.items()})
    return report(results, rates)


def study(scenario: str, bound: float, seed: int, config: Mapping[str, Scalar] = STUDY) -> RunResult:
    """One run of the study."""
    word = "ps-async" if math.isinf(bound) else f"ps-ssp[s={bound:g}]"
    network = Network.parse(f"lan{SCENARIOS[scenario]},seed={seed}")
    return _train(word, {**config, "seed": seed}, WORKERS, network, step=STEP, slept=False)


def rates_of(word: str, step: float) -> tuple[float, float]:
    """Updates a second on the simulated clock, and of workers that sleep; step: seconds, four times that of one."""
    say(f"{word}: steps of {step:g} s, simulated and slept")
    network = Network.parse(SLEEP_NETWORK)
    simulated, slept = (_train(word, SLEEP, 3, network, step=step, slept=slept).curve for slept in (False, True))
    return _rate(simulated, simulated=True), _rate(slept, simulated=False)


def _rate(curve: Sequence[CurvePoint], *, simulated: bool) -> float:
    first, last = curve[SLEEP_FROM], curve[SLEEP_TO]
    batch = 16
    seconds = _time(last) - _time(first) if simulated else last.seconds - first.seconds
    return (_samples(last) - _samples(first)) / batch / seconds


def _samples(point: CurvePoint) -> int:
    assert point.samples is not None
    return point.samples


def _train(
    word: str, config: Mapping[str, Scalar], workers: int, network: Network | None, *, step: float, slept: bool
) -> RunResult:
    app = FlowerApp.load(EXAMPLES / "digits")
    (chosen,) = parse_modes(word)
    assert isinstance(chosen.mode, ParameterServer)
    with tempfile.TemporaryDirectory(prefix="fedcore-ssp-") as folder:
        result = execute_run(
            PlannedRun(
                app=app,
                chosen=replace(chosen, mode=replace(chosen.mode, slept=slept)),
                config={**app.run_config, "partition": "iid", "local-epochs": 0, **config},
                settings={},
                sites=workers,
                seed=int(config.get("seed", SEEDS[0])),
                folder=Path(folder),
                network=network,
                cost=Cost(step=step, example=0.0),
            ),
            ignore,
        )
    if result.status != "finished":
        raise RunFailed(f"{word}: {result.reason}")
    return result


# --- what a run shows -------------------------------------------------------------------------------------------------


def to_target(curve: Sequence[CurvePoint], target: float) -> tuple[float, float]:
    """Simulated seconds and samples until the accuracy first reaches `target`, interpolated; infinity where it never
    does."""
    for before, after in pairwise(curve):
        low, high = (number_of(point.metrics, "accuracy") or 0.0 for point in (before, after))
        if high >= target:
            share = (target - low) / (high - low)
            seconds = _time(before) + share * (_time(after) - _time(before))
            return seconds, _samples(before) + share * (_samples(after) - _samples(before))
    return math.inf, math.inf


def _time(point: CurvePoint) -> float:
    if point.simulated_seconds is None:
        raise RunFailed("the run had no simulated clock")
    return point.simulated_seconds


def oldest(results: Sequence[RunResult]) -> int:
    """The largest staleness, in clocks, over all updates of the runs."""
    return max(max(_staleness(result).clocks) for result in results)


def _staleness(result: RunResult) -> Staleness:
    if result.staleness is None:
        raise RunFailed(f"{result.mode} measured no staleness")
    return result.staleness


# --- the report -------------------------------------------------------------------------------------------------------


def report(results: Results, rates: Rates) -> Report:
    """Figures and tables out of all runs."""
    worst = max(oldest(found) - bound for (_, bound), found in results.items() if not math.isinf(bound))
    figures = [
        Figure(name="staleness_beyond_bound", value=worst, unit="clocks", aim=0.0),
        Figure(name="ssp3_over_bsp_seconds_transient", value=_seconds_ratio(results, "transient", 3.0), aim=1.0),
    ]
    if rates:
        slow = [pair for (step, _), pair in rates.items() if step == max(SLEEP_STEPS)]
        off = max(abs(simulated / slept - 1) for simulated, slept in slow)
        figures.append(Figure(name="simulated_rate_off_slept", value=off, aim=CLOCK_AIM))
    tables = [_times(results), _ages(results)]
    return Report(
        benchmark="ssp",
        figures=tuple(figures),
        tables=(*tables, _rates(rates)) if rates else tuple(tables),
        notes=(
            f"{WORKERS} workers, batches of 16, SGD without momentum, lr {STUDY['lr']}, target {TARGET:.0%} of the "
            "test examples; mean and standard deviation over the seeds",
            "every push is a step of the server's optimizer; s = 0 is bulk synchronous in its waiting alone",
            "clocks: by how many steps a worker was ahead of the slowest one when it read; updates: of others between "
            "its read and its push",
        ),
    )


def _seconds_ratio(results: Results, scenario: str, bound: float) -> float:
    """Of the mean simulated seconds to the target at a bound to those at s = 0."""
    means = [fmean(to_target(result.curve, TARGET)[0] for result in results[scenario, each]) for each in (bound, 0.0)]
    return means[0] / means[1]


def _times(results: Results) -> Table:
    rows = []
    for (scenario, bound), found in results.items():
        seconds, samples = zip(*(to_target(result.curve, TARGET) for result in found), strict=True)
        accuracy = [100 * (number_of(result.metrics, "accuracy") or 0.0) for result in found]
        whole = [result.simulated_seconds or 0.0 for result in found]
        cells = (_spread(seconds, 2), _spread(samples, 0), _spread(accuracy, 1), _spread(whole, 2))
        updates = [_mean_age(_staleness(result).updates) for result in found]
        rows.append((scenario, f"{bound:g}", *cells, str(oldest(found)), f"{fmean(updates):.1f}"))
    header = (
        "stragglers", "s", "simulated s to target", "samples to target", "final accuracy, %", "simulated s in all",
        "largest clocks", "mean updates",
    )  # fmt: skip
    return Table(title=f"To {TARGET:.0%}, by bound", header=header, rows=tuple(rows))


def _ages(results: Results) -> Table:
    """How many of all updates had which age in clocks, in per cent."""
    edges = (0, 1, 2, 3, 5, 9, math.inf)
    header = tuple(f"{low}" if high == low + 1 else f"{low} to {high - 1}" for low, high in pairwise(edges[:-1]))
    rows = []
    for (scenario, bound), found in results.items():
        ages: Counter[int] = Counter()
        for result in found:
            ages.update(_staleness(result).clocks)
        shares = [
            sum(count for age, count in ages.items() if low <= age < high) / ages.total()
            for low, high in pairwise(edges)
        ]
        rows.append((scenario, f"{bound:g}", *(f"{100 * share:.0f}" for share in shares)))
    return Table(
        title="Staleness in clocks, % of the updates",
        header=("stragglers", "s", *header, "9 and more"),
        rows=tuple(rows),
    )


def _rates(rates: Rates) -> Table:
    rows = [
        (f"{4e3 * step:.0f}, {1e3 * step:.0f}, {1e3 * step:.0f}", name, *_rate_cells(*pair))
        for (step, name), pair in rates.items()
    ]
    header = ("steps, ms", "mode", "simulated clock", "workers that sleep", "ratio")
    return Table(title="Updates a second of three workers", header=header, rows=tuple(rows))


def _rate_cells(simulated: float, slept: float) -> tuple[str, ...]:
    return f"{simulated:.1f}", f"{slept:.1f}", f"{simulated / slept:.2f}"


def _mean_age(ages: Mapping[int, int]) -> float:
    return sum(age * count for age, count in ages.items()) / sum(ages.values())


def _spread(values: Sequence[float], digits: int) -> str:
    if not all(math.isfinite(value) for value in values):
        return f"reached by {sum(math.isfinite(value) for value in values)} of {len(values)}"
    mean, deviation = mean_and_spread(values)
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
