"""Which rank of which group this process is, and on which device."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Self

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ranks that train together. device: where this rank keeps its model."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def current(cls) -> Self:
        """The initialised process group, or a world of one; on this rank's GPU, if there is one that the group uses."""
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        # Where there are fewer GPUs than ranks the group has gloo alone.
        over_gloo = dist.is_initialized() and "nccl" not in dist.get_backend_config()
        if over_gloo or not torch.cuda.is_available():
            return cls(rank=rank, size=size)
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return cls(rank=rank, size=size, device=torch.device("cuda", local_rank % torch.cuda.device_count()))

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of `values` over all ranks, in place; every rank has to call it."""
        if self.size > 1:
            dist.all_reduce(values)
        return values
