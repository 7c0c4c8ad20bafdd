"""The local loop: train a model on one client's arrays, evaluate it on one client's test part.

Everything is in memory already, so there is no DataLoader; the order of the examples is a function
of the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedcore.data.types import Split
from fedcore.errors import ConfigurationError
from fedcore.training.losses import Tally, as_features, loss_of, tally
from fedcore.training.seeds import seeded

_EVALUATION_BATCH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """A local optimizer. `momentum` is for sgd; adam keeps its usual betas (0.9, 0.999)."""

    name: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adam"):
            raise ConfigurationError(f"unknown optimizer {self.name!r}: use sgd or adam")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigurationError(f"lr must be a positive number, not {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"momentum must be in [0, 1), not {self.momentum}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigurationError(f"weight decay cannot be {self.weight_decay}")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer for all parameters of `model`, with fresh state."""
        if self.name == "adam":
            return torch.optim.Adam(model.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            model.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )


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


def train(
    model: nn.Module,
    data: Split,
    *,
    optimizer: OptimizerConfig,
    batch_size: int,
    seed: int,
    epochs: int = 0,
    steps: int = 0,
    device: torch.device | str = "cpu",
) -> TrainSummary:
    """Train `model` in place for a number of epochs, or of optimizer steps.

    batch_size: 0 means one full batch in the order of the data. epochs, steps: exactly one is
    positive; with steps, passes over the data follow one another, each in a new order, until the
    steps are used up (FLamby counts its rounds so). seed: decides order and dropout.
    Raises ConfigurationError for settings that mean nothing.
    """
    if (epochs > 0) == (steps > 0) or min(epochs, steps) < 0:
        raise ConfigurationError(f"set either epochs or steps to a positive number (epochs {epochs}, steps {steps})")
    if batch_size < 0:
        raise ConfigurationError(f"batch size cannot be {batch_size}; 0 means one full batch")
    x, y = _tensors(data, device)
    size = batch_size or len(data)
    total = steps or epochs * math.ceil(len(data) / size)
    update = optimizer.build(model)
    taken, seen, loss_sum = 0, 0, torch.zeros((), dtype=torch.float64, device=device)
    model.to(device).train()
    with seeded(seed):
        generator = torch.Generator().manual_seed(seed)
        for rows in _batches(len(data), size, total, generator):
            labels = y[rows]
            loss = loss_of(model(as_features(x[rows])), labels)
            update.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            update.step()
            taken += 1
            seen += len(labels)
            loss_sum += loss.detach().double() * len(labels)
    return TrainSummary(examples=len(data), steps=taken, loss=float(loss_sum) / seen)


def evaluate(model: nn.Module, data: Split, *, device: torch.device | str = "cpu") -> Evaluation:
    """Mean loss and accuracy of `model` on `data`; its mode and weights stay as they are."""
    was_training = model.training
    model.to(device).eval()
    counted = Tally()
    x, y = _tensors(data, device)
    with torch.no_grad():
        for start in range(0, len(data), _EVALUATION_BATCH):
            rows = slice(start, start + _EVALUATION_BATCH)
            counted += tally(model(as_features(x[rows])), y[rows])
    model.train(was_training)
    return Evaluation(examples=len(data), targets=counted.targets, loss=counted.mean_loss, accuracy=counted.accuracy)


def _tensors(data: Split, device: torch.device | str) -> tuple[Tensor, Tensor]:
    if len(data) == 0:
        raise ConfigurationError("this client has no examples to train or test on")
    # torch.tensor copies: NumPy arrays that came from a file are read-only, tensors never are.
    return torch.tensor(data.x, device=device), torch.tensor(data.y, device=device)


def _batches(examples: int, size: int, steps: int, generator: torch.Generator) -> Iterator[Tensor | slice]:
    """Row numbers of `steps` batches; every pass over the data has an order of its own."""
    if size >= examples:
        # The order inside a full batch changes only rounding; keep it, so that a full batch on all
        # data is the pooled gradient step, bit for bit.
        for _ in range(steps):
            yield slice(None)
        return
    done = 0
    while done < steps:
        order = torch.randperm(examples, generator=generator)
        for rows in torch.split(order, size)[: steps - done]:
            yield rows
            done += 1
