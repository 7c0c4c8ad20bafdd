"""Joining a rank's process into one torch process group.

Apart from `fedcore.training`, whose engines take a second to import: an app may train with something else.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Final

import torch
from torch.distributed import HashStore, PrefixStore, Store, TCPStore, init_process_group  # type: ignore[attr-defined]

COLLECTIVE_TIME: Final = timedelta(days=1)
"""Longer than any task: a collective that waits is ended by the task's deadline, which the agent keeps."""


def join(store: Store, *, rank: int, world_size: int, local_rank: int, local_world_size: int) -> None:
    """Initialise the default process group: NCCL with a device for each local rank, gloo if there are fewer.

    With NCCL, tensors on the CPU still go over gloo. Ranks that share a device meet over gloo, since NCCL refuses two
    on one. Raises RuntimeError when the others cannot be reached.
    """
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_devices = devices >= local_world_size
    if devices:
        torch.cuda.set_device(local_rank % devices)
    init_process_group(
        "cpu:gloo,cuda:nccl" if has_devices else "gloo",
        store=PrefixStore("default", store),
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIME,
    )


def join_on_this_machine(*, rank: int, ranks: int, port: int, listening: int | None) -> None:
    """Join `ranks` processes of one machine. The store of rank 0 is on `port` of the loopback.

    Args:
        listening: descriptor of a socket that listens there already, for rank 0, so that nobody races for a port.
    """
    _stay_on_loopback()
    store = TCPStore("127.0.0.1", port, ranks, is_master=rank == 0, master_listen_fd=listening)
    join(store, rank=rank, world_size=ranks, local_rank=rank, local_world_size=ranks)


def join_alone() -> None:
    """A group of this process alone, which the engines of several ranks need on one rank as well."""
    _stay_on_loopback()
    join(HashStore(), rank=0, world_size=1, local_rank=0, local_world_size=1)


def _stay_on_loopback() -> None:
    """Gloo would listen on the address of the machine's name; nobody outside needs to reach these ranks."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
