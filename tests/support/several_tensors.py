"""A model of two inputs and two outputs, its data, and what bare PyTorch makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from fedcore.training import OptimizerConfig, seeded

EXAMPLES, STEPS, RATE = 11, 4, 0.2
SGD = OptimizerConfig(lr=RATE)


class Listed(Dataset[Any]):
    """The given examples, and maybe a way to make batches of them."""

    def __init__(self, examples: Sequence[Any], collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self.examples = examples
        if collate_fn is not None:
            self.collate_fn = collate_fn

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, row: int) -> Any:
        return self.examples[row]


class TwoInputs(nn.Module):
    """Of words and a number two answers: a class and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 6, padding_idx=0, mode="sum")
        self.head = nn.Linear(7, 3)

    def forward(self, ids: Tensor, number: Tensor) -> dict[str, Tensor]:
        both = torch.cat([self.words(ids), number.unsqueeze(1)], dim=1)
        out = self.head(both)
        return {"class": out[:, :2], "value": out[:, 2]}


def two_losses(output: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    classes = functional.cross_entropy(output["class"], targets["class"], reduction="none")
    return classes + (output["value"] - targets["value"]) ** 2


def made_up() -> list[tuple[list[int], float, int, float]]:
    draw = np.random.default_rng(0)
    return [
        (draw.integers(1, 20, draw.integers(1, 6)).tolist(), float(draw.normal()), int(draw.integers(2)), float(n))
        for n in draw.normal(size=EXAMPLES)
    ]


def padded(words: list[list[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(one) for one in words], batch_first=True)


def as_dicts(batch: list[Any]) -> Any:
    words, numbers, classes, values = zip(*batch, strict=True)
    inputs = {"ids": padded(list(words)), "number": torch.tensor(numbers)}
    return inputs, {"class": torch.tensor(classes), "value": torch.tensor(values)}


def as_tuples(batch: list[Any]) -> Any:
    inputs, targets = as_dicts(batch)
    return (inputs["ids"], inputs["number"]), targets


def with_labels(batch: list[Any]) -> Any:
    inputs, targets = as_dicts(batch)
    return {**inputs, "labels": targets}


def model() -> TwoInputs:
    with seeded(3):
        return TwoInputs()


def in_bare_torch() -> TwoInputs:
    """The same by PyTorch alone: full batches."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    (batch,) = DataLoader(Listed(made_up()), batch_size=EXAMPLES, collate_fn=as_dicts)
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch
        two_losses(module(**inputs), targets).mean().backward()
        optimizer.step()
    return module
