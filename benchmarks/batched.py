"""Clients that train at once against the same clients one after the other.

    python benchmarks/batched.py [--quick] [--json] [--models 2nn] [--clients 1 4 16 64]

Clients of 50 examples each, batches of 10, one epoch of SGD: the seconds of a client when B of them train as one
batched step, over those when each trains alone in the loop that a single client has. Both in one process with one
thread, as a worker of a simulation has it, by turns. What is around the training in a simulation is in neither: the
model from its file, the update into the sum.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
from torch import nn

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from benchmarks.stopwatch import Patience, shortest
from fedcore.data import Split
from fedcore.training import OptimizerConfig, local_engine
from fedcore.training.batched import clients_that_pay, find_difference, train_together
from fedcore.training.engines import Engine
from fedcore.training.loop import TrainingPlan
from fedcore.training.models.small import digits_mlp, lenet, logistic_regression, mcmahan_2nn, mcmahan_cnn, small_cnn

EXAMPLES = 50
BATCH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, the shape of its examples, and its classes. aim: for its clients at once over one by one."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    aim: float


MODELS: Mapping[str, Model] = {
    "logistic": Model(build=lambda: logistic_regression(13), shape=(13,), classes=2, aim=0.2),
    "digits": Model(build=digits_mlp, shape=(64,), classes=10, aim=0.5),
    "small-cnn": Model(build=lambda: small_cnn(10), shape=(28, 28), classes=10, aim=0.9),
    "lenet": Model(build=lenet, shape=(28, 28), classes=10, aim=1.0),
    "2nn": Model(build=mcmahan_2nn, shape=(28, 28), classes=10, aim=1.0),
    "cnn": Model(build=mcmahan_cnn, shape=(28, 28), classes=10, aim=1.0),
}


def main() -> int:
    """The command line."""
    options = parser("Clients that train at once against the same clients one after the other.")
    options.add_argument("--models", nargs="+", choices=list(MODELS), help="which models (default: all; smallest: one)")
    options.add_argument("--clients", nargs="+", type=int, default=[1, 4, 16, 64], help="how many at once")
    options.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    options.add_argument("--seconds", type=float, help="how long each model is measured (default 30, quick 5)")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Each model for each number of clients."""
    torch.set_num_threads(arguments.threads)
    seconds = arguments.seconds or sized(arguments, smallest=0.0, quick=5.0, whole=30.0)
    patience = Patience(seconds=seconds, repeats=1 if arguments.smallest else 2)
    figures, rows = [], []
    for name in arguments.models or list(MODELS)[: 1 if arguments.smallest else None]:
        engine = engine_of(MODELS[name])
        paid = clients_that_pay(engine)
        say(f"{name}: {patience.seconds:.0f} s")
        alone, together = seconds_of(MODELS[name], engine, sorted({*arguments.clients, paid}), patience)
        ratios = {count: seconds / alone for count, seconds in together.items()}
        # Where one by one pays, that is what a simulation does.
        value = ratios[paid] if paid > 1 else 1.0
        figures.append(Figure(name=f"{name}_at_once_over_one_by_one", value=value, aim=MODELS[name].aim))
        rows.append(
            (
                name,
                f"{parameters(engine):,}",
                f"{alone * 1e3:.2f}",
                *cells(ratios, arguments.clients),
                chosen(paid, value),
            )
        )
    header = (
        "model",
        "parameters",
        "ms a client, one by one",
        *(f"B = {count}" for count in arguments.clients),
        "automatic",
    )
    return Report(
        benchmark="batched",
        figures=tuple(figures),
        tables=(Table(title="Seconds of a client at once, over one by one", header=header, rows=tuple(rows)),),
        notes=(
            f"clients of {EXAMPLES} examples, batches of {BATCH}, one epoch of SGD, {arguments.threads} thread",
            "automatic: the number that a simulation takes by itself; the figures are for that",
            "before anything is timed, the first steps of two clients are compared as a simulation compares them",
        ),
    )


def engine_of(model: Model) -> Engine:
    """An engine as a simulation has it."""
    return local_engine(model.build(), OptimizerConfig(lr=0.1))


def seconds_of(
    model: Model, engine: Engine, counts: Sequence[int], patience: Patience
) -> tuple[float, dict[int, float]]:
    """Seconds of one client alone, and of one among B at once."""
    rng = np.random.default_rng(0)
    plans = [
        TrainingPlan(
            data=Split(x=rng.random((EXAMPLES, *model.shape), np.float32), y=rng.integers(0, model.classes, EXAMPLES)),
            batch_size=BATCH,
            epochs=1,
            seed=client,
        )
        for client in range(max(counts))
    ]
    difference = find_difference(engine, plans[:2]) if len(plans) > 1 else None
    assert difference is None, difference
    start = [parameter.detach().clone() for parameter in engine.parameters()]
    few = plans[: min(16, len(plans))]

    def one_by_one() -> None:
        for plan in few:
            with torch.no_grad():
                for parameter, value in zip(engine.parameters(), start, strict=True):
                    parameter.copy_(value)
            engine.reset_optimizer()
            plan.run(engine)

    def at_once(count: int) -> Callable[[], object]:
        return lambda: train_together(engine, plans[:count])

    jobs: dict[int, Callable[[], object]] = {0: one_by_one, **{count: at_once(count) for count in counts}}
    found = shortest(jobs, patience)
    return found[0] / len(few), {count: found[count] / count for count in counts}


def parameters(engine: Engine) -> int:
    """How many are trained."""
    return sum(parameter.numel() for parameter in engine.parameters())


def cells(ratios: Mapping[int, float], counts: Sequence[int]) -> list[str]:
    """One ratio for each asked number of clients."""
    return [f"{ratios[count]:.2f}" for count in counts]


def chosen(paid: int, value: float) -> str:
    """What a simulation does by itself."""
    return f"{value:.2f} (B = {paid})" if paid > 1 else "one by one"


if __name__ == "__main__":
    sys.exit(main())
