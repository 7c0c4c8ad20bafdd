"""What the trained model says to new digits: a CSV of 64 grey values of 0 to 16 a line, no header."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcore import LocalJob
from fedcore.training import outputs


def predict(module: nn.Module, path: Path, job: LocalJob) -> Iterator[dict[str, Any]]:
    pixels = np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2) / 16
    for chances in outputs(module, torch.from_numpy(pixels)).softmax(dim=1):
        yield {"digit": int(chances.argmax()), "probability": round(float(chances.max()), 4)}


def example_input(job: LocalJob) -> Tensor:
    return torch.rand(2, 64, generator=torch.Generator().manual_seed(0))
