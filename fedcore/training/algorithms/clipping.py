"""Clipping to a norm that follows a quantile (Andrew et al. 2021, "Differentially Private Learning with Adaptive
Clipping", NeurIPS), section 2.

A client shrinks its update to the bound C that it was sent, and says with one bit b whether it was within it before.
The server moves C by the mean of the bits, C <- C exp(-eta_C (mean b - gamma)), towards the gamma-quantile of the
norms. Every client weighs 1. The norm is that of the federated parameters together, as over one vector. The bits are
metrics of the secure sum; they have no noise, so this goes with no differential privacy (section 2.1 noises them).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

import torch

from fedcore.errors import ConfigurationError
from fedcore.training.algorithms.base import LocalAlgorithm
from fedcore.training.engines import Engine

BOUND: Final = "clip-bound"
NOT_CLIPPED: Final = "not_clipped"


class LocalClipping(LocalAlgorithm):
    """Gives back the clipped update, and as a metric 1 if it was not clipped."""

    name: ClassVar[str] = "adaptive-clipping"

    def __init__(self, engine: Engine, federated: Collection[str], settings: Mapping[str, Any]) -> None:
        super().__init__(engine, federated, settings)
        self.bound = float(settings.get(BOUND, math.nan))
        if not 0 < self.bound < math.inf:
            raise ConfigurationError(f"{BOUND} must be a positive number, not {self.bound:g}")

    def _finish(self) -> dict[str, float]:
        updates = [torch.zeros_like(start) for start in self._start]
        for name, own, start in self.moves():
            updates[self._named[name]] = own - start
        norm = float(self.engine.norm(updates))
        factor = min(1.0, self.bound / norm) if norm else 1.0
        for _, own, start in self.moves():
            own.sub_(start).mul_(factor).add_(start)
        return {NOT_CLIPPED: float(norm <= self.bound)}
