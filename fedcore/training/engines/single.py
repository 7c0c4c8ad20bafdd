"""One rank, nothing wrapped around the model."""

from __future__ import annotations

from fedcore.training.engines.base import Engine
from fedcore.training.engines.blocks import prepare


class SingleEngine(Engine):
    """The model as it is, on this process's device."""

    def _build(self) -> None:
        self.module = self.model = prepare(self.recipe.build(), self.config).to(self.device)
