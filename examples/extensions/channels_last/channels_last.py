"""An engine for convolutions on one processor."""

import torch

from fedcore.training.engines.replicated import SingleEngine


class ChannelsLastEngine(SingleEngine):
    """One rank whose convolutions have their channels last in memory, as many processors prefer it."""

    def _build(self) -> None:
        super()._build()
        self.model.to(memory_format=torch.channels_last)
