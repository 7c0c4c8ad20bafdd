"""Crafted first models, under which the sum of all updates holds single records.

Trap weights (Boenisch et al. 2023, arXiv 2112.02918, section 5): rows of the first layer, half of them negative, let a
hidden unit see very few records; its gradient over that of its bias is the record, or their mean.

LOKI (Zhao et al. 2023, arXiv 2303.12233) after Robbing the Fed (Fowl et al. 2022): all units measure one number of a
record against thresholds in steps; what two neighbours differ by is the record between them. LOKI gives each client a
model of its own, so that their records fall into different units.

A threshold (logistic regression has no hidden units): p = 1 above a value of one feature and 0 below. Two sums with
neighbouring values differ by the records in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, Final

import numpy as np

from benchmarks.privacy.federation import Attacked, Tensors, Vector
from benchmarks.privacy.reading import DEVIATIONS, PIXELS, Reading
from fedcore.state import ModelState

FEATURES: Final = (3, 0, 7)
"""Cholesterol, age and depression of the ST segment: some patients are far from all others in these."""
MANY: Final = 10
"""Steps from which on all of them are tried."""
UNITS, PIXELS_OF_ONE, CLASSES = 128, 64, 10
ONE_STEP: Final[Mapping[str, Any]] = {"batch-size": 0, "local-epochs": 1, "lr": 1.0, "momentum": 0.0}
"""Of digits: one step over all records of a client, for attackers who may choose."""
ONE_HOSPITAL_STEP: Final[Mapping[str, Any]] = {"batch-size": 0, "local-steps": 1, "lr": 1000.0}
_MEAN, _SPREAD = 0.305, 0.3
"""Of the pixels of handwritten digits, as anybody knows them."""


async def trap_weights(fed: Attacked, models: int) -> Reading:
    """Each model in a run of its own, as its first one."""
    reading = Reading()
    for seed in range(models):
        await read_sum(fed, fed.ask(trapping(seed)), reading)
    return reading


async def later_trap_weights(fed: Attacked, models: int) -> Reading:
    """The app's own model first, and crafted ones after it, in the same run: a server that lies."""
    reading = Reading()
    await fed.sum(fed.ask(run="later"))
    for seed in range(models):
        await read_sum(fed, fed.ask(trapping(seed), run="later"), reading)
    return reading


async def loki(fed: Attacked, models: int) -> Reading:
    """As the owners agreed to train, then in one step, which the run's config asks for."""
    reading = Reading()
    for seed in range(models):
        await read_sum(fed, fed.ask(imprinting(seed, scale=0.01, out=1.0)), reading)
        await read_sum(fed, fed.ask(imprinting(seed, scale=1.0, out=0.3), run_config=ONE_STEP), reading)
    return reading


async def loki_for_each(fed: Attacked, models: int) -> Reading:
    """A model for each client under one exchange, as the paper has it: a server that lies."""
    reading = Reading()
    clients = range(1, fed.subject.clients + 1)
    for seed in range(models):
        own = {client: imprinting(1000 * seed + client, scale=0.01, out=1.0) for client in clients}
        await read_sum(fed, replace(fed.ask(own[1]), own=own), reading)
    return reading


async def thresholds(fed: Attacked, steps: int, run: str = "") -> Reading:
    """Neighbouring values of a feature, from its tail on: as the owners agreed to train, then finer, in one step.

    run: one run for all models, after the app's own; each is the first one of its run otherwise.
    """
    reading = Reading()
    named = {"run": run} if run else {}
    if run:
        await fed.sum(fed.ask(run=run))
    tail, fine = np.linspace(5.5, 2.0, steps), np.linspace(3.2, 1.6, steps)
    for feature, side in product(FEATURES if steps >= MANY else FEATURES[:1], (1, -1)):
        for values, sharpness, changes in ((tail, 60.0, {}), (fine, 2e4, ONE_HOSPITAL_STEP)):
            sums: list[Tensors] = []
            for value in values:
                ask = fed.ask(above(feature, side * value, side * sharpness), run_config=changes, **named)
                if (told := await fed.update(ask)) is None:
                    break
                sums.append(told)
            for guess in _between(sums):
                reading.guess_records(guess, fed.subject.records, DEVIATIONS)
    return reading


async def later_thresholds(fed: Attacked, steps: int) -> Reading:
    """The same in one run, after the app's own model: a server that lies."""
    return await thresholds(fed, steps, run="later")


async def read_sum(fed: Attacked, ask: Any, reading: Reading) -> None:
    """Count the records of digits that one sum shows."""
    tensors = await fed.update(ask)
    if tensors is not None:
        reading.guess_records(guessed(tensors), fed.subject.records, PIXELS)


def guessed(tensors: Tensors) -> Vector:
    """What hidden units saw, and what neighbours saw apart from each other [guesses, pixels]."""
    weights, biases = tensors["hidden1.weight"], tensors["hidden1.bias"]
    with np.errstate(divide="ignore", invalid="ignore"):
        alone = weights / biases[:, None]
        apart = np.diff(weights, axis=0) / np.diff(biases)[:, None]
    return np.concatenate([alone, apart])


def trapping(seed: int) -> ModelState:
    """Units that see few records: half of their weights negative, the other half the same, positive and smaller."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((UNITS, PIXELS_OF_ONE))
    half = PIXELS_OF_ONE // 2
    for unit, share in enumerate(np.linspace(0.4, 0.75, UNITS)):
        sizes, places = np.abs(rng.normal(0, 0.5, half)), rng.permutation(PIXELS_OF_ONE)
        weights[unit, places[:half]], weights[unit, places[half:]] = -sizes, share * sizes
    return _perceptron(weights, np.zeros(UNITS), rng.normal(0, 0.1, (CLASSES, UNITS)))


def imprinting(seed: int, *, scale: float, out: float) -> ModelState:
    """Units that measure one random combination of pixels against thresholds, from both ends of what it may be."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(0, 1, PIXELS_OF_ONE)
    middle, spread = direction.sum() * _MEAN, float(np.linalg.norm(direction)) * _SPREAD
    steps = np.linspace(0.5, 2.5, UNITS // 2) * spread
    weights = np.concatenate([np.tile(sign * direction, (UNITS // 2, 1)) for sign in (1, -1)])
    biases = -np.concatenate([sign * middle + steps for sign in (1, -1)])
    return _perceptron(scale * weights, scale * biases, np.repeat(rng.normal(0, out, (CLASSES, 1)), UNITS, axis=1))


def above(feature: int, value: float, sharpness: float) -> ModelState:
    """P = 1 where a feature is larger."""
    weights = np.zeros((1, 13), np.float32)
    weights[0, feature] = sharpness
    return ModelState.from_arrays({"linear.weight": weights, "linear.bias": np.array([-sharpness * value], np.float32)})


def _between(sums: Sequence[Tensors]) -> Iterator[Vector]:
    """What each two neighbouring sums differ by, over what their biases differ by [1, features]."""
    for one, other in pairwise(sums):
        bias = one["linear.bias"] - other["linear.bias"]
        with np.errstate(divide="ignore", invalid="ignore"):
            yield (one["linear.weight"] - other["linear.weight"]) / bias


def _perceptron(weights: Vector, biases: Vector, out: Vector) -> ModelState:
    tensors = {
        "hidden1.weight": weights,
        "hidden1.bias": biases,
        "output.weight": out,
        "output.bias": np.zeros(CLASSES),
    }
    return ModelState.from_arrays({name: value.astype(np.float32) for name, value in tensors.items()})
