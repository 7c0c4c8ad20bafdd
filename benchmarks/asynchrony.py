"""Virtual time to a target accuracy with stragglers: waiting for all, not for the slowest, and for nobody.

    python benchmarks/asynchrony.py [--quick] [--json]

The digits app over 24 clients in memory, secure, at most 12 of them at work at a time, with Dirichlet(0.5) parts. What
clients take comes from simulated devices (`fedcore.simulation.devices`): an example costs 1 ms, all are about equally
fast, or a fifth of them is ten times slower (permanent), or each piece of work takes a lognormal time (transient).

- *synchronous*: 12 clients train, and the round ends with the last of them.
- *over-selected*: 12 clients train, and the round ends with the ninth.
- *buffered*: 12 clients are always at work, and every 4 updates make a model (FedBuff, arXiv 2106.06639).

After each training the model is tested on all test examples where the ServerApp runs, which costs no virtual time, and
the run ends when it first has the target accuracy. Everything else is real: training, masks and sums.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])

from flwr.app import UserConfig

from benchmarks.common import EXAMPLES, Figure, Report, Table, mean_and_spread, parser, run, say
from fedcore import averaging_server
from fedcore.config import JobSettings
from fedcore.data import Split, load_digits
from fedcore.events import ClientDropped, ExchangeDone, FiguresFound, RunEvent
from fedcore.flower.memory_app import opened
from fedcore.flower.output import quiet_flower
from fedcore.simulation import Simulation
from fedcore.simulation.devices import devices_of
from fedcore.wire import Scalar

CLIENTS, AT_WORK, FASTEST, BUFFER = 24, 12, 9, 4
TARGET: Final = 0.9
MOST_MODELS: Final = 120
SEEDS: Final = (42, 43, 44)
DEVICES: Final = {
    "about equal": "vary=uniform:0.9:1.1",
    "permanent": "vary=uniform:0.9:1.1,slower=0.2:10",
    "transient": "vary=lognormal:1",
}
WAYS: Final[Mapping[str, tuple[Mapping[str, float | str], Mapping[str, float | str | int]]]] = {
    "synchronous": ({"fraction-train": AT_WORK / CLIENTS}, {}),
    "over-selected": ({"fraction-train": FASTEST / CLIENTS}, {"over-selection": AT_WORK / FASTEST - 1}),
    "buffered": (
        {"strategy": "fedbuff", "server-lr": 1.0, "server-momentum": 0.0},
        {"asynchrony": "buffered", "buffer-size": BUFFER, "concurrency": AT_WORK},
    ),
}
"""Run config and settings of each."""


@dataclass(slots=True)
class Course:
    """What a run showed. seconds: of virtual time, to the target; infinity where it was not reached."""

    seconds: float = math.inf
    models: int = 0
    updates: int = 0
    ages: list[int] = field(default_factory=list)
    lost: int = 0
    _now: float = 0.0

    def take(self, event: RunEvent) -> None:
        """Note an event."""
        if isinstance(event, ExchangeDone):
            self._now += event.virtual_seconds or 0.0
            self.models += event.trains
            self.updates += len(event.survivors) if event.trains else 0
            self.ages += event.staleness.values()
        elif isinstance(event, ClientDropped):
            self.lost += 1
        elif isinstance(event, FiguresFound) and reached(event):
            self.seconds = min(self.seconds, self._now)


def reached(figures: FiguresFound) -> bool:
    """Whether a model is as good as wanted."""
    accuracy = figures.metrics.get("eval_acc", 0.0)
    return isinstance(accuracy, float) and accuracy >= TARGET


def main() -> int:
    """The command line."""
    options = parser("Virtual time to a target accuracy: synchronous, over-selected, buffered.")
    options.add_argument("--seeds", type=int, choices=range(1, len(SEEDS) + 1), default=len(SEEDS), help="how many")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All ways, devices and seeds; in the quick mode one seed and one kind of devices."""
    quiet_flower()
    seeds = SEEDS[:1] if arguments.quick else SEEDS[: arguments.seeds]
    kinds = ["permanent"] if arguments.quick else list(DEVICES)
    courses: dict[tuple[str, str], list[Course]] = {}
    for kind in kinds:
        for way in WAYS:
            for seed in seeds:
                say(f"{kind}, {way}, seed {seed}")
                courses.setdefault((kind, way), []).append(course(kind, way, seed))
    return report(courses)


def course(kind: str, way: str, seed: int) -> Course:
    """One run."""
    sys.path.insert(0, str(EXAMPLES / "digits"))
    from digits_app.client_app import app as client  # type: ignore[import-not-found]

    config, settings = WAYS[way]
    chosen: dict[str, Scalar] = {
        "num-server-rounds": MOST_MODELS, "local-epochs": 4, "batch-size": 16, "lr": 0.05, "momentum": 0.9,
        "partition": "dirichlet:0.5", "min-nodes": 1, "fraction-evaluate": 0.0, "central-test": 10_000, "seed": seed,
        **config,
    }  # fmt: skip
    found = Course()
    with opened((client, averaging_server(client, test=test_examples)), chosen) as app:
        Simulation(
            app=app.app,
            clients=CLIENTS,
            run_config=chosen,
            settings=JobSettings.from_mapping(settings),
            seed=seed,
            devices=devices_of(DEVICES[kind], None, clients=CLIENTS, seed=seed),
            enough=reached,
            emit=found.take,
        ).run()
    return found


def test_examples(config: UserConfig) -> Split:
    """The digits' fixed test half, all clients' test parts together."""
    del config
    return load_digits().test


# --- the report -------------------------------------------------------------------------------------------------------


def report(courses: Mapping[tuple[str, str], Sequence[Course]]) -> Report:
    """Figures and the table out of all runs."""
    figures = []
    for kind in dict.fromkeys(kind for kind, _ in courses):
        buffered = _seconds(courses[kind, "buffered"])
        for other, aim in (("synchronous", 0.5), ("over-selected", 1.0)):
            ratio = buffered / _seconds(courses[kind, other])
            name = f"buffered_over_{other.replace('-', '_')}_seconds_{kind.replace(' ', '_')}"
            figures.append(Figure(name=name, value=ratio, aim=1.0 if kind == "about equal" else aim))
    return Report(
        benchmark="asynchrony",
        figures=tuple(figures),
        tables=(_table(courses),),
        notes=(
            f"{CLIENTS} clients, {AT_WORK} at work at most, {FASTEST} waited for with over-selection, buffers of "
            f"{BUFFER}; target {TARGET:.0%} of all test examples; mean and standard deviation over the seeds",
            "an update: of one client, in a sum; staleness: models made since the one that an update began from",
            "lost: clients that were not waited for, and work that was too old (max-staleness = 10)",
        ),
    )


def _seconds(found: Sequence[Course]) -> float:
    return fmean(one.seconds for one in found)


def _table(courses: Mapping[tuple[str, str], Sequence[Course]]) -> Table:
    rows = []
    for (kind, way), found in courses.items():
        reached_by = sum(math.isfinite(one.seconds) for one in found)
        cells = [_spread([one.seconds for one in found])]
        cells += [_spread([one.models for one in found]), _spread([one.updates for one in found])]
        if reached_by < len(found):
            cells[0] = f"reached by {reached_by} of {len(found)}"
        ages = [age for one in found for age in one.ages]
        old = (f"{fmean(ages):.1f}", str(max(ages))) if ages else ("0", "0")
        rows.append((kind, way, *cells, *old, f"{fmean(one.lost for one in found):.0f}"))
    header = (
        "devices", "way", "virtual s to target", "models", "updates", "mean staleness", "largest staleness", "lost",
    )  # fmt: skip
    return Table(title=f"To {TARGET:.0%}", header=header, rows=tuple(rows))


def _spread(values: Sequence[float]) -> str:
    mean, deviation = mean_and_spread(values)
    digits = 0 if mean >= 20 else 1
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
