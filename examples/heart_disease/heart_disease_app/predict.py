"""What the trained model says to new patients of one hospital, in a file like UCI's processed.cleveland.data."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedcore import LocalJob
from fedcore.data import read_hospital
from fedcore.training import outputs
from heart_disease_app.task import FEATURES


def predict(module: nn.Module, path: Path, job: LocalJob) -> Iterator[dict[str, Any]]:
    """Patients are standardised by the file's own rows, as each hospital's were in the training."""
    if job.config["standardise"] != "site":
        raise ValueError('the means of a model that was trained with standardise = "pooled" are not in its file')
    for risk in outputs(module, torch.from_numpy(read_hospital(path))).sigmoid().flatten().tolist():
        yield {"disease": risk >= 0.5, "probability": round(risk, 4)}


def example_input(job: LocalJob) -> Tensor:
    return torch.rand(2, FEATURES, generator=torch.Generator().manual_seed(0))
