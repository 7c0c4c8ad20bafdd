"""Joining a rank's process into one torch process group.

Apart from `fedcore.training`, whose engines take a second to import: an app may train with something else.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import torch
from torch.distributed import PrefixStore, Store, init_process_group  # type: ignore[attr-defined]

COLLECTIVE_TIME: Final = timedelta(days=1)
"""Longer than any task: a collective that waits is ended by the task's deadline, which the agent keeps."""


def join(store: Store, *, rank: int, world_size: int, local_rank: int, local_world_size: int) -> None:
    """Initialise the default process group: NCCL with a device for each local rank, gloo where there are none.

    With NCCL, tensors on the CPU still go over gloo. Raises RuntimeError when the others cannot be reached.
    """
    has_devices = torch.cuda.is_available() and torch.cuda.device_count() >= local_world_size
    if has_devices:
        torch.cuda.set_device(local_rank)
    init_process_group(
        "cpu:gloo,cuda:nccl" if has_devices else "gloo",
        store=PrefixStore("default", store),
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIME,
    )
