"""A replica on each rank; gradients are averaged while the backward pass still runs."""

from __future__ import annotations

import contextlib
import gc
from contextlib import AbstractContextManager

from torch.nn.parallel import DistributedDataParallel

from fedcore.training.engines.base import Engine
from fedcore.training.engines.blocks import prepare
from fedcore.training.engines.hooks import register_hook


class DdpEngine(Engine):
    """DistributedDataParallel over all ranks (Li et al. 2020, "PyTorch Distributed").

    The wrapper stays from round to round: a new state is loaded in place.
    """

    model: DistributedDataParallel

    def _build(self) -> None:
        self.module = prepare(self.recipe.build(), self.config).to(self.device)
        self.model = DistributedDataParallel(
            self.module,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            # The gradients live in the buckets that are sent, and not beside them a second time.
            gradient_as_bucket_view=True,
            static_graph=self.config.static_graph,
            # Running statistics are each rank's own until `save` averages them; sending rank 0's before every forward
            # pass would drop what the others saw.
            forward_sync_buffers=False,
        )
        register_hook(self.model, self.config.hook)
        self._traced = not self.config.static_graph

    def _synchronised(self, last: bool) -> AbstractContextManager[object]:
        if not self._traced:
            # With a static graph the first backward pass decides what is sent when, and may not be left out.
            self._traced = True
            return contextlib.nullcontext()
        return contextlib.nullcontext() if last else self.model.no_sync()

    def close(self) -> None:
        """Drop wrapper and optimizer: a wrapper that outlives the process group may abort the process at its exit."""
        super().close()
        del self.model, self.optimizer
        gc.collect()
