"""Membership inference on final models: LiRA (Carlini et al. 2022, arXiv 2112.03570), online.

Many models are trained, each by a simulated run of 15 rounds with real masked sums, on a half of each client's records
drawn at random. Each is in turn the one that is attacked, and the others are the attacker's. For each record the
attacker knows how models that saw it answer, and how others do: a Gaussian each, with one variance for all (section
VI-C), since there are few models. A score says which of the two the attacked model is more like.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.common import APPS, say
from benchmarks.privacy.federation import NOISE, Vector
from fedcore.comparison.workers.problem import Problem
from fedcore.data.types import Split
from fedcore.flower.app import FlowerApp
from fedcore.flower.loading import load_object
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState

APP: Final = APPS / "halves"
FALSE_ALARMS: Final = 0.01
HOSPITALS: Final[Mapping[str, Any]] = {
    "data": "heart_disease", "local-epochs": 0, "local-steps": 100, "batch-size": 4, "lr": 0.001, "momentum": 0.0,
}  # fmt: skip
"""The run config of examples/heart_disease; that of the app is as in examples/digits."""
Members = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What LiRA tells.

    rate: true alarms where FALSE_ALARMS of those who were no members are taken for one.
    area: under the ROC curve; 0.5 is guessing.
    accuracy: of the attacked models on records that they did not see.
    """

    models: int
    rate: float
    area: float
    accuracy: float


def infer(data: str, models: int, *, noise: bool, rounds: int = 15, clients: int = 4) -> Membership:
    """Train the models and attack each of them."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    app = FlowerApp.load(APP)
    config = {**app.run_config, **(HOSPITALS if data == "heart_disease" else {}), "num-server-rounds": rounds}
    clip = 0.1 if data == "heart_disease" else 1.0
    changes = {**NOISE, "dp-rounds": rounds, "clip-norm": clip} if noise else {}
    settings = JobSettings.from_mapping({**app.settings.to_mapping(), **changes})
    whole, answers = Problem.load(app, config={**config, "half": -1}, sites=clients), []
    for half in range(models):
        simulation = Simulation(app=app, clients=clients, run_config={**config, "half": half}, settings=settings)
        state = simulation.run().state
        assert state is not None
        answers.append(_answer(whole, state, half))
        say(f"membership: {data}, {half + 1} of {models} models, {'with noise' if noise else 'without noise'}")
    sure, right, seen = (np.array(parts) for parts in zip(*answers, strict=True))
    rate, area = roc(scores(sure, seen), seen)
    return Membership(models=models, rate=rate, area=area, accuracy=float(right[~seen].mean()))


def scores(sure: Vector, seen: Members) -> Vector:
    """How much more like a member's each answer is than like another's [models, records].

    Args:
        sure: log odds of the true label [models, records].
        seen: whether the model trained on the record [models, records]; of two models, the second saw what the first
            did not.
    """
    made = np.zeros_like(sure)
    for model in range(len(sure)):
        others = np.arange(len(sure)) // 2 != model // 2  # as many saw a record as did not, so that chance is 0.5
        answers, members = sure[others], seen[others]
        within, without = (_mean(answers, chosen) for chosen in (members, ~members))
        spread = np.std(np.where(members, answers - within, answers - without)) + 1e-12
        made[model] = ((sure[model] - without) ** 2 - (sure[model] - within) ** 2) / spread**2
    return made


def roc(score: Vector, seen: Members) -> tuple[float, float]:
    """The rate of true alarms at FALSE_ALARMS, and the area under the curve."""
    bound = np.quantile(score[~seen], 1 - FALSE_ALARMS)
    return float(np.mean(score[seen] > bound)), float(roc_auc_score(seen.ravel(), score.ravel()))


def _mean(answers: Vector, chosen: Members) -> Vector:
    """Over the models that are chosen for a record; over all where none is [records]."""
    counts = chosen.sum(axis=0)
    totals = np.where(chosen, answers, 0.0).sum(axis=0)
    means: Vector = np.where(counts > 0, totals / np.maximum(counts, 1), answers.mean(axis=0))
    return means


def _answer(whole: Problem, state: ModelState, half: int) -> tuple[Vector, Members, Members]:
    """Of each record: the log odds of its label, whether it is right, and whether the model has seen it."""
    chosen = load_object(APP, "halves_app.client_app:members", FunctionType)
    module = whole.app.definition.build(dict(whole.config))
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()})
    sure, right, seen = [], [], []
    for client in range(whole.sites):
        records = whole.training(client)
        assert isinstance(records, Split)
        with torch.no_grad():
            logits = module(torch.from_numpy(records.x)).double().numpy()
        odds, hit = _odds(logits, np.asarray(records.y))
        sure.append(odds)
        right.append(hit)
        seen.append(chosen(len(records.x), half, client))
    return np.concatenate(sure), np.concatenate(right), np.concatenate(seen)


def _odds(logits: Vector, labels: NDArray[Any]) -> tuple[Vector, Members]:
    if logits.shape[1] == 1:
        odds = np.where(labels.reshape(-1) > 0, logits[:, 0], -logits[:, 0])
        return odds, odds > 0
    rows = np.arange(len(labels))
    true, rest = logits[rows, labels], logits.copy()
    rest[rows, labels] = -np.inf
    largest = rest.max(axis=1)
    others = largest + np.log(np.exp(rest - largest[:, None]).sum(axis=1))
    return true - others, true > largest
