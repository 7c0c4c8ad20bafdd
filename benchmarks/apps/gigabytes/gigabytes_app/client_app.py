"""The ClientApp: one full batch, whose step moves each element of the model by the same amount."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcore import LocalJob, supervised_app
from fedcore.data import Split
from fedcore.training import OptimizerConfig, derive_seed, seeded

EXAMPLES = 8
SLOPE = 1e-2


class Tensors(nn.Module):
    """`count` vectors of nearly equal size, `parameters` elements together; normal values."""

    def __init__(self, parameters: int, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        for number in range(count):
            size = parameters // count + (number < parameters % count)
            self.register_parameter(f"block{number}", nn.Parameter(torch.randn(size, dtype=dtype)))

    def forward(self, x: Tensor) -> Tensor:
        """X [n, 1] -> [n]: each example weighs the sum of all elements."""
        total = torch.stack([block.sum() for block in self.parameters()]).sum()
        return SLOPE * x[:, 0] * total


def initial_model(config: Mapping[str, Any]) -> nn.Module:
    """The model with the weights that every run with this seed starts from."""
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        return Tensors(int(config["parameters"]), int(config["tensors"]), getattr(torch, str(config["dtype"])))


def output(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of each example is what the model says of it."""
    features, _ = batch
    values: Tensor = model(features)
    return values


def data(job: LocalJob) -> tuple[Split, Split]:
    """Training and test part of a node, whose examples differ from those of the others."""
    number = int(job.node["partition-id"])
    part = Split(x=np.full((EXAMPLES, 1), 1 + number, np.float32), y=np.zeros(EXAMPLES, np.int64))
    return part, part


def optimizer(config: Mapping[str, Any]) -> OptimizerConfig:
    """Plain SGD."""
    return OptimizerConfig(lr=float(config["lr"]))


app = supervised_app(model=initial_model, optimizer=optimizer, data=data, loss=output, metrics=())
