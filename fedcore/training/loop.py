"""The local loop on whatever engine: train on one client's data, evaluate on its test part; and optimizers by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from fedcore.errors import ConfigurationError
from fedcore.training.engines import Engine, EngineConfig, Proximal, Recipe, World, make_engine
from fedcore.training.engines.batches import TrainingData
from fedcore.training.losses import Tally, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Makes a local optimizer. `momentum` is for sgd; adam and adamw keep their usual betas (0.9, 0.999)."""

    name: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adam", "adamw"):
            raise ConfigurationError(f"unknown optimizer {self.name!r}: use sgd, adam or adamw")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigurationError(f"lr must be a positive number, not {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"momentum must be in [0, 1), not {self.momentum}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigurationError(f"weight decay cannot be {self.weight_decay}")

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer for the parameters of `model` that are trained, with fresh state."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        match self.name:
            case "adam":
                return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
            case "adamw":
                return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


_EVALUATION_BATCH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSummary:
    """What a client reports of its training.

    examples: size of its training part, the weight of its update in FedAvg.
    steps: optimizer steps taken. loss: mean over the examples seen, each before its step.
    """

    examples: int
    steps: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean loss and accuracy (0 to 1) over the counted targets.

    examples: size of the test part. targets: what was predicted, and the weight of both means when clients' results are
    averaged: one for each example, but for sequences one for each counted position.
    """

    examples: int
    targets: int
    loss: float
    accuracy: float


def local_engine(model: nn.Module, optimizer: OptimizerConfig | None = None) -> Engine:
    """An engine around a model that exists, in this process alone."""
    recipe = Recipe(build=lambda: model, optimizer=optimizer or OptimizerConfig())
    return make_engine(recipe, EngineConfig(), World(device=World.current().device))


def train(
    engine: Engine,
    data: TrainingData,
    *,
    batch_size: int,
    seed: int,
    epochs: int = 0,
    steps: int = 0,
    clip_norm: float = 0.0,
    proximal: Proximal | None = None,
    sharded: bool = False,
    workers: int = 0,
) -> TrainSummary:
    """Train the engine's model for a number of epochs, or of optimizer steps.

    batch_size: examples of one step over all ranks; 0 means one full batch in the order of the data. epochs, steps:
    exactly one is positive; with steps, passes over the data follow one another, each in a new order, until the steps
    are used up (FLamby counts its rounds so). seed: decides order and dropout. sharded: each rank has data of its own.
    Raises ConfigurationError for settings that mean nothing.
    """
    batches = engine.batches(
        data, batch_size=batch_size, seed=seed, epochs=epochs, steps=steps, sharded=sharded, workers=workers
    )
    taken, seen, loss = 0, 0, torch.zeros((), dtype=torch.float64, device=engine.device)
    engine.model.train()
    with engine.seeded(seed):
        for batch in batches:
            loss += engine.step(batch, clip_norm=clip_norm, proximal=proximal)
            taken += 1
            seen += batch.total
    mean = float(engine.total(loss)) / seen
    return TrainSummary(examples=engine.examples(data, sharded=sharded), steps=taken, loss=mean)


def evaluate(engine: Engine, data: TrainingData, *, sharded: bool = False, workers: int = 0) -> Evaluation:
    """Mean loss and accuracy of the engine's model on `data`; its mode and weights stay as they are."""
    was_training = engine.model.training
    engine.model.eval()
    counted = Tally()
    try:
        for batch in engine.passes(data, batch_size=_EVALUATION_BATCH, sharded=sharded, workers=workers):
            output = engine.outputs(batch)
            if output is not None and batch.weights is None:
                counted += tally(output, batch.y)
    finally:
        engine.model.train(was_training)
    sums = torch.tensor([counted.targets, counted.loss, counted.correct], dtype=torch.float64, device=engine.device)
    targets, loss, correct = engine.total(sums).tolist()
    return Evaluation(
        examples=engine.examples(data, sharded=sharded),
        targets=round(targets),
        loss=loss / max(targets, 1.0),
        accuracy=correct / max(targets, 1.0),
    )
