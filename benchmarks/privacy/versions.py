"""Two models in one buffered sum (Pasquini et al. 2022, arXiv 2111.07380): all but one client get a dead one.

Under it every hidden unit is below zero, so the hidden layer learns nothing, and what the sum says of that layer is the
one client's update.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from benchmarks.privacy.federation import Attacked, Tensors, Vector
from benchmarks.privacy.reading import Reading
from fedcore.state import ModelState

BUFFERED: Final = {"asynchrony": "buffered"}
VICTIM: Final = 3


async def one_version(fed: Attacked, _: int) -> Reading:
    """Both models have the number 0."""
    reading = Reading()
    own, dead = fed.subject.first_model, _dead(fed.subject.first_model)
    versions = {client: (0, own if client == VICTIM else dead) for client in range(1, fed.subject.clients + 1)}
    await _read(fed, reading, versions, dead, staleness=0)
    return reading


async def two_versions(fed: Attacked, _: int) -> Reading:
    """The victim's update of version 0 waits, and the others get the dead model as version 1."""
    reading = Reading()
    own, dead = fed.subject.first_model, _dead(fed.subject.first_model)
    others = [client for client in range(1, fed.subject.clients + 1) if client != VICTIM]
    everybody = dict.fromkeys((*others, VICTIM), (0, own))
    if not await fed.trains(fed.ask(run="versions"), everybody):
        return reading
    begun = {client: everybody[client] for client in others}
    if await fed.sum(fed.ask(own, run="versions", cohort=tuple(others), starts=begun)) is not None:
        await _read(fed, reading, dict.fromkeys(others, (1, dead)), dead, staleness=1)
    return reading


async def _read(
    fed: Attacked, reading: Reading, versions: dict[int, tuple[int, ModelState]], newest: ModelState, staleness: int
) -> None:
    if not await fed.trains(fed.ask(run="versions"), versions):
        return
    starts = {VICTIM: (0, fed.subject.first_model), **versions}
    told = await fed.update(fed.ask(newest, run="versions", starts=starts))
    if told is not None:
        guess = _hidden(told) * math.sqrt(1 + staleness)
        reading.guess_updates([guess], [update[: guess.size] for update in fed.updates])


def _hidden(tensors: Tensors) -> Vector:
    return np.concatenate([tensors["hidden1.bias"].reshape(-1), tensors["hidden1.weight"].reshape(-1)])


def _dead(model: ModelState) -> ModelState:
    tensors = {name: np.array(value) for name, value in model.items()}
    tensors["hidden1.bias"] -= np.float32(1e4)
    return ModelState.from_arrays(tensors)
