"""Accuracy against bytes: secure runs whose uploads take 0.5, 0.25, 0.1 and 0.05 of float32, next to plain ones.

    python benchmarks/bytes.py --data-dir DATA [--quick] [--seeds N] [--json]

Heart disease: four hospitals, a small network. Fashion-MNIST: ten clients, Dirichlet(0.5), LeNet. FEMNIST: a client for
each of 105 writers, a small CNN. All runs of one seed have the same initial weights and the same batches, so what
differs is what compression does. Plain runs send the model in float32, up and down; the others set `upload-fraction`,
with `field-bits = "auto"` and `download-bits = 16`. Every client takes part in every round, in the state machines of
the real server and clients, in memory. Accuracy is that of the last model on the test set; the bytes are the run's own,
first exchange included.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from flwr.app import UserConfig
from torch import nn

from benchmarks.common import Figure, Report, Table, data_parser, mean_and_spread, run, say, sized
from fedcore import LocalJob, averaging_server, supervised_app
from fedcore.data import Dataset, Split, client_data, load_fashion_mnist, load_femnist, load_heart_disease
from fedcore.flower.memory_app import load_app
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState
from fedcore.training import OptimizerConfig, derive_seed, evaluate, local_engine, seeded
from fedcore.training.models import lenet, mlp, small_cnn
from fedcore.wire.events import ExchangeDone, RunEvent

FRACTIONS = (0.5, 0.25, 0.1, 0.05)
QUARTER = 0.25
PLAIN = 1.0
FEATURES = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A data set, and how it is trained. steps: of SGD in a round at each client."""

    name: str
    load: Callable[[], Dataset]
    model: Callable[[], nn.Module]
    partition: str
    clients: int
    rounds: int
    steps: int
    batch: int
    lr: float
    momentum: float
    seeds: int


@cache
def _heart() -> Dataset:
    return load_heart_disease(standardise="pooled")


CASES = (
    Case(
        name="heart_disease", load=_heart, model=lambda: mlp(FEATURES, (128, 64), 2), partition="natural", clients=4,
        rounds=20, steps=20, batch=16, lr=0.05, momentum=0.0, seeds=5,
    ),
    Case(
        name="fashion_mnist", load=cache(load_fashion_mnist), model=lenet, partition="dirichlet:0.5", clients=10,
        rounds=30, steps=20, batch=32, lr=0.02, momentum=0.9, seeds=5,
    ),
    Case(
        name="femnist", load=cache(load_femnist), model=small_cnn, partition="natural", clients=105,
        rounds=16, steps=15, batch=20, lr=0.1, momentum=0.0, seeds=5,
    ),
)  # fmt: skip
_BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """accuracy: per cent. up, down: bytes a client and round over the model's in float32."""

    accuracy: float
    up: float
    down: float


def main() -> int:
    """The command line."""
    options = data_parser("Accuracy against bytes: uploads of 0.5, 0.25, 0.1 and 0.05 of float32.")
    options.add_argument("--seeds", type=int, help="runs of each kind (default: 5)")
    options.add_argument("--rounds", type=int, help="rounds of every run (default: 20, 30 and 16, by data set)")
    options.add_argument("--only", choices=sorted(_BY_NAME), help="one data set alone")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Every data set at every fraction with every seed."""
    cases = [case for case in CASES if arguments.only in (None, case.name)]
    if arguments.quick:
        cases = [case for case in cases if case.name == (arguments.only or "heart_disease")]
    seeds = {one.name: arguments.seeds or sized(arguments, smallest=1, quick=2, whole=one.seeds) for one in cases}
    rounds = {one.name: arguments.rounds or sized(arguments, smallest=2, quick=5, whole=one.rounds) for one in cases}
    jobs = [
        (case.name, fraction, seed)
        for case in cases
        for seed in range(seeds[case.name])
        for fraction in (PLAIN, *FRACTIONS)
    ]
    with ProcessPoolExecutor(
        min(len(jobs), os.cpu_count() or 1), mp_context=get_context("forkserver"), initializer=_prepare
    ) as pool:
        running = [pool.submit(simulate, name, fraction, seed, rounds[name]) for name, fraction, seed in jobs]
        outcomes = {job: future.result() for job, future in zip(jobs, running, strict=True)}
    return report(outcomes, cases, rounds)


def _prepare() -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)


def simulate(name: str, fraction: float, seed: int, rounds: int) -> Outcome:
    """One run in memory."""
    case, sent = _BY_NAME[name], list[ExchangeDone]()

    def emit(event: RunEvent) -> None:
        if isinstance(event, ExchangeDone):
            sent.append(event)

    changes = {"aggregation": "plain"} if fraction == PLAIN else _compressed(fraction)
    config = {"num-server-rounds": rounds, "fraction-evaluate": 0.0, "seed": seed, "min-nodes": case.clients}
    config |= {"local-epochs": 0, "local-steps": case.steps, "batch-size": case.batch}
    client = supervised_app(
        model=partial(initial_model, case),
        optimizer=lambda _: OptimizerConfig(lr=case.lr, momentum=case.momentum),
        data=partial(own_part, case),
    )
    with load_app((client, averaging_server(client)), config) as app:
        values = {"w-max": most_examples(case, seed), "train-metrics": ["train_loss"], **changes}
        settings = JobSettings.from_mapping(values)
        outcome = Simulation(
            app=app.app, clients=case.clients, run_config=app.app.run_config, settings=settings, emit=emit
        ).run()
    if outcome.state is None:
        raise AssertionError("the run left no model")
    whole = outcome.state.layout.nbytes
    up = fmean(fmean(done.bytes_up.values()) for done in sent) / whole
    down = fmean(fmean(done.bytes_down.values()) for done in sent) / whole
    accuracy = _accuracy(case, outcome.state)
    say(f"{name}, {fraction:g} of float32, seed {seed}: {accuracy:.2f} %, {up:.3f} up, {down:.3f} down")
    return Outcome(accuracy=accuracy, up=up, down=down)


def _compressed(fraction: float) -> Mapping[str, object]:
    return {"field-bits": "auto", "upload-fraction": fraction, "download-bits": 16}


def initial_model(case: Case, config: UserConfig) -> nn.Module:
    """The model that all runs of the config's seed begin with."""
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        return case.model()


def own_part(case: Case, job: LocalJob) -> tuple[Split, Split]:
    """Training and test examples of the client of a job."""
    number, seed = int(job.node["partition-id"]), int(job.config["seed"])
    return client_data(case.load(), case.partition, client=number, clients=case.clients, seed=seed)


def most_examples(case: Case, seed: int) -> int:
    """Training examples of the client that has the most."""
    parts = (
        client_data(case.load(), case.partition, client=number, clients=case.clients, seed=seed)
        for number in range(case.clients)
    )
    return max(len(train) for train, _ in parts)


def _accuracy(case: Case, state: ModelState) -> float:
    """Of a model on the whole test set, per cent."""
    model = case.model()
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()})
    return 100 * evaluate(local_engine(model), case.load().test).accuracy


def report(
    outcomes: Mapping[tuple[str, float, int], Outcome], cases: Sequence[Case], rounds: Mapping[str, int]
) -> Report:
    """Figures, of the data set that lost most, and a table for each."""
    found = {
        (case.name, fraction): [one for (name, at, _), one in outcomes.items() if (name, at) == (case.name, fraction)]
        for case in cases
        for fraction in (PLAIN, *FRACTIONS)
    }
    accuracy = {key: mean_and_spread([one.accuracy for one in runs]) for key, runs in found.items()}
    lost = {case.name: accuracy[case.name, PLAIN][0] - accuracy[case.name, QUARTER][0] for case in cases}
    worst = max(lost, key=lambda name: lost[name] - accuracy[name, PLAIN][1])
    spread = accuracy[worst, PLAIN][1]
    quarter = [one for case in cases for one in found[case.name, QUARTER]]
    return Report(
        benchmark="bytes",
        figures=(
            Figure(name="accuracy_lost_at_quarter", value=lost[worst], unit="points", aim=round(spread, 2)),
            Figure(name="spread_points", value=spread, unit="points", aim=5.0),
            Figure(name="upload_over_float32", value=max(one.up for one in quarter), aim=0.3),
            Figure(name="download_over_float32", value=max(one.down for one in quarter), aim=0.6),
        ),
        tables=tuple(_table(case, found, accuracy) for case in cases),
        notes=(
            f"accuracy_lost_at_quarter and spread_points (of the plain runs, over seeds) are those of {worst}, where "
            "the one is largest against the other; a loss below zero is a gain",
            "bytes are means over all rounds, the first exchange and the first whole model included, and over clients",
            *(
                f"{case.name}: {case.clients} clients, all in every round, {rounds[case.name]} rounds of {case.steps} "
                f"steps of SGD (batch {case.batch}, lr {case.lr:g}, momentum {case.momentum:g}), "
                f"{len(found[case.name, PLAIN])} seeds"
                for case in cases
            ),
        ),
    )


def _table(
    case: Case,
    found: Mapping[tuple[str, float], Sequence[Outcome]],
    accuracy: Mapping[tuple[str, float], tuple[float, float]],
) -> Table:
    rows = []
    for fraction in (PLAIN, *FRACTIONS):
        runs, (mean, spread) = found[case.name, fraction], accuracy[case.name, fraction]
        differences = [one.accuracy - plain.accuracy for one, plain in zip(runs, found[case.name, PLAIN], strict=True)]
        rows.append(
            (
                "plain, float32" if fraction == PLAIN else f"secure, {fraction:g}",
                f"{mean:.2f}",
                f"{spread:.2f}",
                f"{fmean(differences):+.2f}",
                f"{fmean(one.up for one in runs):.3f}",
                f"{fmean(one.down for one in runs):.3f}",
            )
        )
    header = ("uploads", "accuracy (%)", "spread", "against plain", "up over float32", "down over float32")
    return Table(title=case.name, header=header, rows=tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
