"""Which rank of which group this process is, and on which device."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Self

import torch
import torch.distributed as dist

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig

_SHARING = ("single", "ddp")
"""Engines whose collectives gloo has for tensors on a GPU: all-reduce and broadcast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ranks that train together.

    device: where this rank keeps its model.
    shared: several ranks have one GPU, and meet over gloo.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shared: bool = False

    @classmethod
    def current(cls) -> Self:
        """The initialised process group, or a world of one; on this rank's GPU, where this process sees any."""
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if not torch.cuda.is_available():
            return cls(rank=rank, size=size)
        # If there are fewer GPUs than ranks the group has gloo alone: NCCL refuses two ranks on one device.
        shared = size > 1 and "nccl" not in dist.get_backend_config()
        local_rank = int(os.environ.get("LOCAL_RANK", str(rank)))
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        return cls(rank=rank, size=size, device=device, shared=shared)

    def check(self, config: EngineConfig) -> None:
        """Raise ConfigurationError for an engine that these ranks cannot have, or settings that mean nothing here."""
        if self.shared and config.engine not in _SHARING:
            raise ConfigurationError(
                f"engine {config.engine} needs a GPU for each rank, since NCCL refuses two ranks on one; take fewer "
                "ranks, engine ddp, or CUDA_VISIBLE_DEVICES= to train on the processor",
                check="gpu-for-each-rank",
            )
        if config.memory_share and self.device.type != "cuda":
            raise ConfigurationError(
                f"memory-share = {config.memory_share:g} is a share of a GPU's memory, and this rank trains on the "
                "processor; leave it out"
            )

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of `values` over all ranks, in place; every rank has to call it."""
        if self.size > 1:
            dist.all_reduce(values)
        return values
