"""One rank, nothing wrapped around the model."""

from __future__ import annotations

from fedcore.training.engines.base import Engine


class SingleEngine(Engine):
    """The model as it is, on this process's device."""

    def _build(self) -> None:
        self.module = self.model = self.recipe.build().to(self.device)
