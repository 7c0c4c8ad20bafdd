"""A replica on each rank; gradients are averaged while the backward pass still runs."""

from __future__ import annotations

import contextlib
import gc
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from fedcore.training.engines.base import Engine
from fedcore.training.engines.blocks import prepare

_POWERSGD_RANK = 4
"""Rank of the approximation: 2 is enough for a ResNet, 4 for an LSTM (Vogels et al. 2019, section 5)."""

_POWERSGD_START = 10
"""Steps with exact gradients first: early gradients change too fast for an approximation that builds on the last."""


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
        self._register_hook()

    def _register_hook(self) -> None:
        if self.config.hook == "fp16":
            self.model.register_comm_hook(None, fp16_compress_hook)
        elif self.config.hook == "bf16":
            self.model.register_comm_hook(None, bf16_hook)
        elif self.config.hook == "powersgd":
            state = PowerSGDState(
                process_group=None, matrix_approximation_rank=_POWERSGD_RANK, start_powerSGD_iter=_POWERSGD_START
            )
            self.model.register_comm_hook(state, powerSGD_hook)

    def _synchronised(self, last: bool) -> AbstractContextManager[object]:
        return contextlib.nullcontext() if last else self.model.no_sync()

    def close(self) -> None:
        """Drop wrapper and optimizer: a wrapper that outlives the process group may abort the process at its exit."""
        super().close()
        del self.model, self.optimizer
        gc.collect()


def bf16_hook(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients, rounded to bfloat16, over the ranks; a Future of the bucket's buffer.

    gloo cannot add bfloat16. There the rounded values are sent as float32, which saves nothing, but gives the numbers
    that training over NCCL has.
    """
    buffer = bucket.buffer()
    sent = (buffer / dist.get_world_size()).to(torch.bfloat16)
    if dist.get_backend() == "gloo":
        sent = sent.to(buffer.dtype)

    def unpack(reduced: torch.futures.Future[list[Tensor]]) -> Tensor:
        buffer.copy_(reduced.value()[0])
        return buffer

    averaged: torch.futures.Future[Tensor] = dist.all_reduce(sent, async_op=True).get_future().then(unpack)
    return averaged
