"""FedDyn (Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", ICLR), section 2, algorithm 1.

Client k minimises L_k(w) - <g_k, w> + alpha/2 ||w - x||^2, where g_k is its gradient at its own last model, and then
sets g_k <- g_k - alpha (w_k - x). At a minimum that is the gradient of L_k there, so all clients can agree on a model
in which their gradients cancel, whatever each one's optimum. Here the minimum is approached by the app's own local
steps, with any optimizer, as in the paper's experiments. Every client weighs 1. The server's part is in
`fedcore.flower.strategies.algorithms`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from fedcore.errors import ConfigurationError
from fedcore.training.algorithms.base import LocalAlgorithm, gradient
from fedcore.training.dtensors import local
from fedcore.training.engines import Engine

ALPHA: Final = "feddyn-alpha"


class LocalFedDyn(LocalAlgorithm):
    """Kept: g_k."""

    name: ClassVar[str] = "feddyn"
    keeps: ClassVar[bool] = True

    def __init__(self, engine: Engine, federated: Collection[str], settings: Mapping[str, Any]) -> None:
        super().__init__(engine, federated, settings)
        self.alpha = float(settings.get(ALPHA, math.nan))
        if not 0 < self.alpha < math.inf:
            raise ConfigurationError(f"{ALPHA} must be a positive number, not {self.alpha:g}")

    def _check(self) -> None:
        super()._check()
        if isinstance(self.engine.optimizer, torch.optim.SparseAdam):
            raise ConfigurationError(
                "strategy feddyn adds to the gradient of every element, and SparseAdam takes sparse gradients alone: "
                "use another optimizer (the gradients of sparse embeddings then become dense), fedavg or fedprox",
                check="optimizer-sparse",
            )

    def _correct(self, parameters: Sequence[Tensor]) -> None:
        for name, index in self.indices():
            pull = local(parameters[index].detach()) - self._start[index]
            gradient(parameters[index]).add_(pull, alpha=self.alpha).sub_(local(self._state[name]))

    def _finish(self) -> dict[str, float]:
        for name, own, start in self.moves():
            local(self._state[name]).sub_(own - start, alpha=self.alpha)
        return {}
