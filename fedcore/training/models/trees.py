"""Boosted trees as a module, for what takes modules: `fedcore predict`, and the evaluation of a comparison."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedcore.state import ModelState
from fedcore.trees import Ensemble


class TreesModule(nn.Module):
    """Features [n, d] in the units of the table, nan for a missing value -> margins [n, outputs], float32.

    They are XGBoost's before its link: of two classes one logit, of several a score for each, of a number the number.
    Nothing trains it by gradients.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.empty = nn.Parameter(torch.zeros(0))  # engines take no module without a parameter, even to test it

    @classmethod
    def of(cls, model: ModelState) -> TreesModule:
        """The trees of a model's file; raises ConfigurationError for a model of another kind."""
        return cls(Ensemble.from_arrays({name: model[name] for name in model}))

    def forward(self, x: Tensor) -> Tensor:
        """The margins of each row; on the CPU, whatever device the rows are on."""
        margins = torch.from_numpy(self.ensemble.margins(x.detach().cpu().float().numpy()))
        return margins.reshape(len(x), -1).to(x.device)
