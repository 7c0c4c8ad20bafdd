"""Four real hospitals of examples/heart_disease, whose updates go through the codec without masks, which are exact."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import EXAMPLES
from fedcore.codec import AnyEncoding, decode, encode, encode_nothing
from fedcore.comparison.workers.problem import Problem
from fedcore.errors import EncodingError
from fedcore.flower.app import FlowerApp
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.system.assignments import override
from fedcore.training import train
from fedcore.training.engines import EngineConfig, World, make_engine

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
EVERYBODY = (0, 1, 2, 3)
RATES = (1e-4, 1e-3, 1e-2)
"""Learning rates; the one in the middle is the app's own."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Closeness:
    """How near a difference of two sums is to one hospital's update. error: relative, in the L2 norm."""

    error: float
    cosine: float

    @classmethod
    def of(cls, found: Vector, true: Vector) -> Closeness:
        """Both [parameters]."""
        norms = float(np.linalg.norm(found) * np.linalg.norm(true))
        return cls(float(np.linalg.norm(found - true) / np.linalg.norm(true)), float(found @ true) / norms)

    def __str__(self) -> str:
        return f"{self.error:.2g} ({self.cosine:.3f})"


class Hospitals:
    """The four clients of a run; `rate` is their learning rate, settings those of the run."""

    def __init__(self, rate: float, settings: JobSettings) -> None:
        app = FlowerApp.load(EXAMPLES / "heart_disease")
        config = override(app.run_config, {"lr": rate}, "the run config")
        self._problem = Problem.load(app, config=config, sites=len(HOSPITALS))
        self._engine = make_engine(self._problem.recipe(), EngineConfig(), World())
        self._model = self._engine.model.state_dict()
        self._settings = settings
        self._plan = EncodingPlan(settings, least_cohort=3)
        self._known: dict[tuple[bytes, int, int], tuple[ModelState, int, float]] = {}
        self.start = self._vector(self._state())

    def sum(self, weights: Vector, sites: Sequence[int], server_round: int) -> tuple[Vector, int]:
        """What an exchange tells: the sum of the sites' weighted updates [parameters] and of their examples."""
        base = self.state_of(weights)
        encoding = self._plan.encoding("train", base.layout, len(EVERYBODY))
        total = np.zeros(encoding.words, np.uint64)
        for site in sites:
            total += self._words(encoding, base, *self._trained(weights, site, server_round))
        mean = decode(encoding, total, survivors=len(sites), base=base)
        assert mean.state is not None
        self._plan.learn("train", encoding, mean)
        return (self._vector(mean.state) - weights) * mean.examples, mean.examples

    def failures(self, weights: Vector) -> int:
        """How many of the four contribute nothing in a first round from this model, as the sum tells."""
        return len(EVERYBODY) - len(self.contributors(weights))

    def contributors(self, weights: Vector) -> list[int]:
        """Which of them do, as nobody is told."""
        bound = self._settings.metric_max
        return [site for site in EVERYBODY if abs(self._trained(weights, site, 1)[2]) <= bound]

    def update(self, weights: Vector, site: int, server_round: int) -> Vector:
        """The weighted update of one hospital, which nobody else should know [parameters]."""
        local, examples, _ = self._trained(weights, site, server_round)
        return (self._vector(local) - weights) * (1 if self._settings.private else examples)

    def _words(
        self, encoding: AnyEncoding, base: ModelState, local: ModelState, examples: int, loss: float
    ) -> NDArray[np.uint64]:
        """What a client sends, without its masks."""
        try:
            made = encode(
                encoding, base=base, local=local, examples=examples, metrics={"loss": loss}, randomness=os.urandom
            )
        except EncodingError:
            made = encode_nothing(encoding, randomness=os.urandom)
        return made.words

    def _trained(self, weights: Vector, site: int, server_round: int) -> tuple[ModelState, int, float]:
        key = weights.tobytes(), site, server_round
        if key not in self._known:
            self.state_of(weights)
            config = self._problem.config
            done = train(
                self._engine,
                self._problem.training(site),
                batch_size=int(config["batch-size"]),
                steps=int(config["local-steps"]),
                seed=self._problem.order_seed(site, server_round),
            )
            self._known[key] = self._state(), done.examples, done.loss
        return self._known[key]

    def state_of(self, weights: Vector) -> ModelState:
        """The model with these values."""
        place = 0
        for tensor in self._model.values():
            part = weights[place : place + tensor.numel()].astype(np.float32).reshape(tuple(tensor.shape))
            tensor.copy_(torch.from_numpy(part))
            place += tensor.numel()
        return self._state()

    def _state(self) -> ModelState:
        return ModelState.from_arrays({name: tensor.numpy().copy() for name, tensor in self._model.items()})

    def _vector(self, state: ModelState) -> Vector:
        """In the order of the model, which is not that of the state."""
        return np.concatenate([state[name].reshape(-1).astype(np.float64) for name in self._model])
