"""Ten clients and a small CNN on Fashion-MNIST: what secure aggregation changes in the model, IID and Dirichlet 0.5.

    python benchmarks/fashion_mnist.py --data-dir DATA [--quick | --full] [--json]

Secure and plain FedAvg of the same seed: same initial weights, same parts, same order of the examples, so that the two
differ only by the stochastic rounding of 16-bit fields. In a run all clients train one after the other in one process
(`fedcore.simulation`, the state machines of the real server and clients); the runs share the cores, one thread each.
`--full` takes the 50 rounds of 10 local epochs of the published table and a day on two cores; without it the runs are
cut short and end in minutes.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks.common import EXAMPLES, Figure, Report, Table, data_parser, run, say, sized
from benchmarks.few import every
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.monitoring.run_record import RunRecord
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.system.assignments import override
from fedcore.wire.events import ExchangeDone, RunEvent

APP = EXAMPLES / "fashion_mnist"
CLIENTS = 10
SEED = 42
SECURE, PLAIN = "secure", "plain"
# adap/flower@fdef7af, baselines/niid_bench README: FedAvg, best test accuracy in per cent over 50 rounds of 10 local
# epochs, 10 clients, batch 64, SGD lr 0.01, momentum 0.9, weight decay 1e-5.
PUBLISHED = {"iid": (89.23, 0.45), "dirichlet:0.5": (88.09, 0.29)}
QUICK_PARTITION = "iid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a run is."""

    rounds: int
    local_epochs: int


QUICK = Length(rounds=1, local_epochs=1)
# About ten minutes on two cores.
SHORT = Length(rounds=20, local_epochs=1)
FULL = Length(rounds=50, local_epochs=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Test accuracy in per cent after each round, and what the run took."""

    accuracies: tuple[float, ...]
    seconds: float
    bytes_up: float

    @property
    def last(self) -> float:
        """After the last round."""
        return self.accuracies[-1]


def main() -> int:
    """The command line."""
    options = data_parser("Secure against plain FedAvg on Fashion-MNIST, ten clients.")
    options.add_argument("--full", action="store_true", help="50 rounds of 10 local epochs, as published")
    options.add_argument("--rounds", type=int, help="rounds of a run")
    options.add_argument("--local-epochs", type=int, help="epochs of a client in a round")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Secure and plain on every partition."""
    length = length_of(arguments)
    partitions = (QUICK_PARTITION,) if arguments.quick else tuple(PUBLISHED)
    step = sized(arguments, smallest=100, quick=1, whole=1)
    return report(simulate_all(partitions, length, step), partitions, length)


def simulate_all(partitions: Sequence[str], length: Length, step: int) -> dict[tuple[str, str], Outcome]:
    """Secure and plain on every partition, as many at a time as there are cores.

    step: every so-many-th example of the data set is used. Small convolutions gain little from a second thread, and
    lose much where the cores are busy.
    """
    kinds = list(product(partitions, (SECURE, PLAIN)))
    workers = min(len(kinds), os.cpu_count() or 1)
    context = get_context("forkserver")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare, initargs=(step,)) as pool:
        jobs = [pool.submit(simulate, partition, aggregation, length) for partition, aggregation in kinds]
        return {kind: job.result() for kind, job in zip(kinds, jobs, strict=True)}


def _prepare(step: int) -> None:
    if step > 1:
        every(step, "load_fashion_mnist")
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)


def simulate(partition: str, aggregation: str, length: Length) -> Outcome:
    """One run in memory."""
    app = FlowerApp.load(APP)
    changes = {
        "partition": partition,
        "seed": SEED,
        "min-nodes": CLIENTS,
        "num-server-rounds": length.rounds,
        "local-epochs": length.local_epochs,
    }
    record, started = RunRecord(), time.monotonic()

    def emit(event: RunEvent) -> None:
        seconds = time.monotonic() - started
        record.add(event, seconds)
        if isinstance(event, ExchangeDone) and not event.trains:
            accuracy = float(str(event.metrics["eval_acc"]))
            say(f"{partition}, {aggregation}: round {event.server_round}, accuracy {accuracy:.4f}, {seconds:.0f} s")

    Simulation(
        app=app,
        clients=CLIENTS,
        run_config=override(app.run_config, changes, "the run config"),
        settings=JobSettings.from_mapping({**app.settings.to_mapping(), "aggregation": aggregation}),
        emit=emit,
    ).run()
    training = [exchange for exchange in record.exchanges if exchange.trains]
    return Outcome(
        accuracies=tuple(100 * value for _, _, value in record.curve("eval_acc")),
        seconds=time.monotonic() - started,
        bytes_up=sum(training[-1].bytes_up.values()) / len(training[-1].bytes_up),
    )


def report(outcomes: Mapping[tuple[str, str], Outcome], partitions: Sequence[str], length: Length) -> Report:
    """Figures and tables."""
    figures = [
        Figure(
            name=f"secure_minus_plain_over_spread_{partition.partition(':')[0]}",
            value=abs(_difference(outcomes, partition)) / (2 * PUBLISHED[partition][1]),
            aim=1.0,
        )
        for partition in partitions
    ]
    return Report(
        benchmark="fashion_mnist",
        figures=tuple(figures),
        tables=(_accuracies(outcomes, partitions), _curves(outcomes, length)),
        notes=(
            f"{CLIENTS} clients, all in every round, {length.rounds} rounds of {length.local_epochs} local epochs, "
            f"batch 64, SGD lr 0.01, momentum 0.9, weight decay 1e-5, seed {SEED}; accuracy in per cent on all 10,000 "
            "test images, each client testing its part",
            "the figure is |secure - plain| after the last round over two of the published standard deviations "
            "between seeds",
            f"published: adap/flower@fdef7af, baselines/niid_bench, best of {FULL.rounds} rounds of "
            f"{FULL.local_epochs} local epochs; for orientation, unless this was run with --full",
        ),
    )


def length_of(arguments: argparse.Namespace) -> Length:
    """How long the run is, by the command line; raises ConfigurationError."""
    if arguments.quick and arguments.full:
        raise ConfigurationError("--quick and --full exclude each other")
    base = QUICK if arguments.quick else FULL if arguments.full else SHORT
    chosen = Length(rounds=arguments.rounds or base.rounds, local_epochs=arguments.local_epochs or base.local_epochs)
    if min(chosen.rounds, chosen.local_epochs) < 1:
        raise ConfigurationError("--rounds and --local-epochs must be positive")
    return chosen


def _difference(outcomes: Mapping[tuple[str, str], Outcome], partition: str) -> float:
    """Secure minus plain after the last round, percentage points."""
    return outcomes[partition, SECURE].last - outcomes[partition, PLAIN].last


def _accuracies(outcomes: Mapping[tuple[str, str], Outcome], partitions: Sequence[str]) -> Table:
    header = ("partition", "secure", "plain", "difference", "secure best", "plain best", "published best")
    rows = []
    for partition in partitions:
        secure, plain = outcomes[partition, SECURE], outcomes[partition, PLAIN]
        mean, deviation = PUBLISHED[partition]
        rows.append(
            (
                partition,
                f"{secure.last:.2f}",
                f"{plain.last:.2f}",
                f"{_difference(outcomes, partition):+.2f}",
                f"{max(secure.accuracies):.2f}",
                f"{max(plain.accuracies):.2f}",
                f"{mean:.2f} ± {deviation:.2f}",
            )
        )
    return Table(title="Accuracy after the last round", header=header, rows=tuple(rows))


def _curves(outcomes: Mapping[tuple[str, str], Outcome], length: Length) -> Table:
    """Every run in a row: seconds, bytes of one client's upload, accuracy by round (at most ten of them)."""
    shown = range(0, length.rounds, -(-length.rounds // 10))
    header = ("run", "seconds", "up kB a round", *(f"round {index + 1}" for index in shown))
    rows = tuple(
        (
            f"{partition}, {aggregation}",
            f"{outcome.seconds:.0f}",
            f"{outcome.bytes_up / 1e3:.0f}",
            *(f"{outcome.accuracies[index]:.2f}" for index in shown),
        )
        for (partition, aggregation), outcome in outcomes.items()
    )
    return Table(title="Runs", header=header, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
