"""Whether this machine has room for a task: refused before anything is downloaded, not an hour later."""

from __future__ import annotations

import contextlib
import gc
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from client_app.exchange.models import Models
from fedcore.run.room import RoomNeeds, check_disk, check_memory, free_line, readable
from fedcore.system.memory import free_memory, may_have_gpu
from fedcore.wire.tasks import Task

_NO_DISK: Final = (
    "this exchange takes {needed} of the disk (the model, the trained model and the update), of which {free} are free: "
    "free some, or let --state-dir name a folder on another disk"
)
_NO_MEMORY: Final = (
    "a rank takes at least {needed} of memory for the weights of this model, of which {free} are free: free some, or "
    "raise the memory limit of the client's container or service"
)


def check_room(task: Task, models: Models) -> None:
    """Refuse a task for whose model, trained model and update the disk has no room; raises StorageFull.

    Exceptions and frames of ended exchanges name each other, and map a model, whose file takes room until they are
    collected.
    """
    needs = _needs(task)
    if task.model is not None and needs.is_large:
        gc.collect()
        here = task.model.size if models.path(task.model.sha256).exists() else 0
        check_disk(models.folder, (needs.client_disk if task.trains else needs.model) - here, _NO_DISK)


def check_ranks_memory(task: Task, free: Callable[[], int | None]) -> None:
    """Refuse a task whose model the memory of this machine clearly cannot hold; raises OutOfMemory.

    Args:
        free: bytes for the ranks, with what they have already; None if the system does not say. It looks at each
            process of the machine, and is not asked for a small model.
    """
    needs = _needs(task)
    if needs.is_large:
        check_memory(free(), needs.least_client_memory, _NO_MEMORY)


def memory_of_ranks() -> int | None:
    """What is free for the ranks here, with what they have already.

    None if a GPU may have the model, or the system does not say.
    """
    free = None if may_have_gpu() else free_memory()
    if free is None:
        return None
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                free += process.memory_info().rss
    return free


def room_of(task: Task, folder: Path) -> str:
    """What a task of a large model takes here, and what is free, for the log; "" for a small one."""
    needs = _needs(task)
    if not needs.is_large:
        return ""
    return (
        f"this model of {readable(needs.model)} takes about {readable(needs.client_memory)} of memory (plain SGD; on "
        f"a GPU it is the device's) and {readable(needs.client_disk)} of disk; free are "
        f"{free_line(free_memory(), shutil.disk_usage(folder).free)}"
    )


def _needs(task: Task) -> RoomNeeds:
    model = task.model.size if task.model is not None else 0
    update = 8 * task.encoding.words if task.encoding is not None else 0
    return RoomNeeds(model=model, update=update, clients=len(task.cohort), plain=task.aggregation == "plain")
