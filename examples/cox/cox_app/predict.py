"""The risk of new patients: a CSV whose header names the columns, in their own units; an empty cell is missing."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cox_app.task import COLUMNS
from fedcore import LocalJob
from fedcore.flower.apps.statistics import standardised
from fedcore.training import outputs


def predict(module: nn.Module, path: Path, job: LocalJob) -> Iterator[dict[str, Any]]:
    """The hazard against that of a patient who is average in everything."""
    with path.open(newline="") as file:
        x = np.array([[float(row[name] or "nan") for name in COLUMNS] for row in csv.DictReader(file)])
    # The federation's means and deviations, which every client got, are in the model's file.
    features = torch.from_numpy(standardised(x, job.message, COLUMNS))
    for risk in outputs(module, features).flatten().exp().tolist():
        yield {"hazard_ratio": round(risk, 4)}


def example_input(job: LocalJob) -> Tensor:
    return torch.rand(2, len(COLUMNS), generator=torch.Generator().manual_seed(0))
