"""Virtual time to a target accuracy with stragglers: waiting for all, not for the slowest, and for nobody.

    python benchmarks/asynchrony.py [--quick] [--json]

The digits app over 24 clients in memory, secure, at most 12 of them at work at a time, with Dirichlet(0.5) parts. What
clients take comes from simulated devices (`fedcore.simulation.devices.devices`): an example costs 1 ms, all are about
equally
fast, or a fifth of them is ten times slower (permanent), or each piece of work takes a lognormal time (transient).

- *synchronous*: m clients train, and the round ends with the last of them.
- *over-selected*: 12 clients train, and the round ends with the m-th.
- *buffered*: 12 clients are always at work, and every K updates make a model (FedBuff, arXiv 2106.06639).

What suits one of them does not suit the others, so each is tuned for each kind of devices, with as many trials: three
sizes (m or K), three learning rates of the clients and two of the server. What is quickest over two seeds is run over
three others, which are the ones reported. A trial is ended once it has taken longer than the best one so far.

After each training the model is tested on all test examples where the ServerApp runs, which costs no virtual time, and
the run ends when it first has the target accuracy. Everything else is real: training, masks and sums.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])

from flwr.app import UserConfig

from benchmarks.common import EXAMPLES, Figure, Report, Table, parser, run, say
from fedcore import averaging_server
from fedcore.comparison.report.summary import Spread, ToTarget, mean_sd
from fedcore.comparison.simulated import model_curve
from fedcore.comparison.target import Reached, Target
from fedcore.data import Split, load_digits
from fedcore.flower.memory_app import load_app
from fedcore.flower.output import quiet_flower
from fedcore.monitoring.run_record import RunRecord
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.devices.choice import parse_devices
from fedcore.wire.base import Scalar
from fedcore.wire.events import FiguresFound

CLIENTS, AT_WORK = 24, 12
TARGET: Final = Target(metric="eval_acc", value=0.9, better="max")
MOST_MODELS: Final = 150
SMALLEST_TARGET: Final = 0.15
"""What a first model or two reach."""
SEEDS: Final = (42, 43, 44)
TUNED_ON: Final = (40, 41)
DEVICES: Final = {
    "about equal": "vary=uniform:0.9:1.1",
    "permanent": "vary=uniform:0.9:1.1,slower=0.2:10",
    "transient": "vary=lognormal:1",
}
SIZES: Final = {"synchronous": (9, 12, 6), "over-selected": (9, 10, 11), "buffered": (8, 12, 4)}
"""How many updates make a model. Of 12 clients over-selection can do without a quarter, since sums tolerate no more."""
RATES: Final = (0.1, 0.05, 0.2)
SERVER_RATES: Final = (1.0, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One way, with one choice of what is tuned. size: updates that make a model. rate: of the clients' SGD."""

    way: str
    size: int
    rate: float
    server_rate: float

    @property
    def config(self) -> dict[str, Scalar]:
        """The run config."""
        buffered = self.way == "buffered"
        return {
            "strategy": "fedbuff" if buffered else "fedavgm",
            "server-lr": self.server_rate,
            "server-momentum": 0.0,
            "lr": self.rate,
            "fraction-train": 1.0 if buffered else self.size / CLIENTS,
        }

    @property
    def settings(self) -> dict[str, Scalar]:
        """Of `[tool.fedcore]`."""
        if self.way == "buffered":
            return {"asynchrony": "buffered", "buffer-size": self.size, "concurrency": AT_WORK}
        return {"over-selection": AT_WORK / self.size - 1 if self.way == "over-selected" else 0.0}


TRIALS: Final = {
    way: [
        Trial(way=way, size=size, rate=rate, server_rate=server_rate)
        for server_rate, size, rate in itertools.product(SERVER_RATES, sizes, RATES)
    ]
    for way, sizes in SIZES.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a run showed up to the target, or to its end.

    updates: in sums. megabytes: that their clients sent and received. lost: clients that were not waited for, and work
    that was too old. ages: staleness of each update in a sum.
    """

    reached: Reached | None
    updates: int = 0
    megabytes: float = 0.0
    lost: int = 0
    ages: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Virtual ones to the target; infinite where it was not reached."""
        seconds = self.reached.virtual_seconds if self.reached is not None else None
        return math.inf if seconds is None else seconds


Courses = Mapping[tuple[str, Trial], Sequence[Course]]
"""Kind of devices, and the trial that was best there -> one run for each seed."""


def main() -> int:
    """The command line."""
    options = parser("Virtual time to a target accuracy: synchronous, over-selected, buffered, each tuned.")
    options.add_argument("--seeds", type=int, choices=range(1, len(SEEDS) + 1), default=len(SEEDS), help="how many")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All ways, devices and seeds; in the quick mode one seed and one kind of devices, and nothing is tuned."""
    quiet_flower()
    logging.getLogger("flwr").setLevel(logging.ERROR)  # it warns of each run that no client evaluates
    seeds = SEEDS[:1] if arguments.quick else SEEDS[: arguments.seeds]
    target = replace(TARGET, value=SMALLEST_TARGET) if arguments.smallest else TARGET
    courses: dict[tuple[str, Trial], Sequence[Course]] = {}
    for kind in ["permanent"] if arguments.quick else DEVICES:
        for way, trials in TRIALS.items():
            trial = trials[0] if arguments.quick else best_of(kind, trials)
            say(f"{kind}, {shown(trial)}")
            courses[kind, trial] = [course(kind, trial, seed, target=target) for seed in seeds]
            say(f"{kind}, {way}: {', '.join(f'{one.seconds:.1f}' for one in courses[kind, trial])} s")
    return report(courses, tuned=not arguments.quick)


def best_of(kind: str, trials: Sequence[Trial]) -> Trial:
    """The one that takes the least virtual time to the target, over the seeds that are for this; else the first."""
    best, least = trials[0], math.inf
    for trial in trials:
        seconds = 0.0
        for seed in TUNED_ON:
            if seconds < least:
                seconds += course(kind, trial, seed, until=least - seconds).seconds
        if seconds < least:
            best, least = trial, seconds
            say(f"{kind}, {shown(trial)}: {seconds / len(TUNED_ON):.2f} s")
    return best


def shown(trial: Trial) -> str:
    """A trial for people."""
    return f"{trial.way}, {trial.size} updates, lr {trial.rate:g}, server lr {trial.server_rate:g}"


def course(kind: str, trial: Trial, seed: int, *, until: float = math.inf, target: Target = TARGET) -> Course:
    """One run, to the target or until so many virtual seconds have passed."""
    sys.path.insert(0, str(EXAMPLES / "digits"))
    from digits_app.client_app import app as client  # type: ignore[import-not-found]

    chosen: dict[str, Scalar] = {
        "num-server-rounds": MOST_MODELS, "local-epochs": 4, "batch-size": 16, "momentum": 0.9,
        "partition": "dirichlet:0.5", "min-nodes": 1, "fraction-evaluate": 0.0, "central-test": 10_000, "seed": seed,
        **trial.config,
    }  # fmt: skip
    record = RunRecord()

    def enough(found: FiguresFound) -> bool:
        value, ends = found.metrics.get(target.metric), record.virtual_ends()
        return (isinstance(value, float) and target.met(value)) or (ends is not None and ends[-1] >= until)

    with load_app((client, averaging_server(client, test=test_examples)), chosen) as app:
        Simulation(
            app=app.app,
            clients=CLIENTS,
            run_config=chosen,
            settings=JobSettings.from_mapping(trial.settings),
            seed=seed,
            devices=parse_devices(DEVICES[kind], None, clients=CLIENTS, seed=seed),
            enough=enough,
            emit=lambda event: record.add(event, 0.0),
        ).run()
    return course_of(record, target)


def course_of(record: RunRecord, target: Target = TARGET) -> Course:
    """What the record of a run shows."""
    training = [done for done in record.exchanges if done.trains]
    return Course(
        reached=target.reached(model_curve(record, record.figures)),
        updates=sum(len(done.survivors) for done in training),
        megabytes=sum(sum(done.bytes_up.values()) + sum(done.bytes_down.values()) for done in training) / 1e6,
        lost=len(record.dropouts),
        ages=[age for done in training for age in done.staleness.values()],
    )


def test_examples(config: UserConfig) -> Split:
    """The digits' fixed test half, all clients' test parts together."""
    del config
    return load_digits().test


# --- the report -------------------------------------------------------------------------------------------------------


def report(courses: Courses, *, tuned: bool) -> Report:
    """Figures and the table out of all runs; tuned: whether each way had its best trial."""
    seconds = {(kind, trial.way): fmean(one.seconds for one in found) for (kind, trial), found in courses.items()}
    figures = []
    for kind in dict.fromkeys(kind for kind, _ in courses):
        for other, aim in (("synchronous", 0.5), ("over-selected", 1.0)):
            figures.append(
                Figure(
                    name=f"buffered_over_{other.replace('-', '_')}_seconds_{kind.replace(' ', '_')}",
                    value=seconds[kind, "buffered"] / seconds[kind, other],
                    aim=1.0 if kind == "about equal" else aim,
                )
            )
    return Report(benchmark="asynchrony", figures=tuple(figures), tables=(_table(courses),), notes=_notes(tuned))


def _notes(tuned: bool) -> tuple[str, ...]:
    how = "nothing was tuned"
    if tuned:
        (count,) = {len(trials) for trials in TRIALS.values()}
        sizes = "; ".join(f"{way} {', '.join(map(str, sorted(sizes)))}" for way, sizes in SIZES.items())
        rates, server_rates = (", ".join(f"{one:g}" for one in sorted(of)) for of in (RATES, SERVER_RATES))
        seeds = " and ".join(map(str, TUNED_ON))
        how = (
            f"each row had {count} trials over seeds {seeds}, none of those reported: sizes {sizes}; lr {rates}; "
            f"server lr {server_rates}; the one with the least mean time is shown"
        )
    return (
        f"{CLIENTS} clients, {AT_WORK} at work at most; target {TARGET.value:.0%} of all test examples; mean and "
        "standard deviation over the seeds",
        how,
        "size: updates that make a model, which for over-selection is who is waited for, and K when buffered",
        "updates: in sums; MB: what their clients sent and received; staleness: models made since the one that "
        "an update began from",
        "lost: clients that were not waited for, and work that was too old (max-staleness = 10); what these sent and "
        "received is not in the MB",
    )


def _table(courses: Courses) -> Table:
    header = (
        "devices", "way", "size", "lr", "server lr", "virtual s to target", "models", "updates", "MB",
        "mean staleness", "largest", "lost",
    )  # fmt: skip
    rows = tuple(_row(kind, trial, found) for (kind, trial), found in courses.items())
    return Table(title=f"To {TARGET.value:.0%}", header=header, rows=rows)


def _row(kind: str, trial: Trial, found: Sequence[Course]) -> tuple[str, ...]:
    taken = ToTarget.of([one.reached for one in found])
    ages = [age for one in found for age in one.ages]
    old = (f"{fmean(ages):.1f}", str(max(ages))) if ages else ("0", "0")
    return (
        kind,
        trial.way,
        str(trial.size),
        f"{trial.rate:g}",
        f"{trial.server_rate:g}",
        taken.format_spread(taken.virtual_seconds, "{:.1f}".format),
        taken.format_spread(taken.round, "{:.0f}".format),
        _over_seeds(one.updates for one in found),
        _over_seeds(one.megabytes for one in found),
        *old,
        _over_seeds(one.lost for one in found),
    )


def _over_seeds(values: Iterable[float]) -> str:
    return mean_sd(Spread.of(values), lambda value: f"{value:.0f}" if value >= 20 else f"{value:.1f}")


if __name__ == "__main__":
    sys.exit(main())
