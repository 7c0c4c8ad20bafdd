"""What a process may have of a GPU and its memory, and how a lack of either is recognised and told.

Apart from `fedcore.training`: an app may train with something else, and its memory is limited anyway.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fedcore.errors import ConfigurationError, OutOfMemory

if TYPE_CHECKING:
    import torch

WHAT_TO_LOWER: Final = (
    "lower the batch size; or let the engine do the same step in less memory: --engine-set micro-batches=4, "
    "precision=bf16, checkpoint=true, or engine fsdp with offload=true"
)
_TEXTS: Final = (
    "can't allocate memory",  # torch's allocator for the processor, whose error has no type of its own
    "CUDA error: out of memory",  # the driver, outside of torch's allocator
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Failed to CUDA calloc",  # NCCL
)


def limit_memory(share: float, device: torch.device | None = None) -> None:
    """Let this process have at most that share of the memory of a GPU, 0 to 1, for what torch allocates.

    An allocation beyond it fails like one on a full device. What CUDA itself takes (some hundred MiB a process) comes
    on top.

    Raises ConfigurationError if there is no GPU.

    Args:
        device: by default the current one.
    """
    import torch

    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"memory-share = {share:g} is a share of a GPU's memory, and this process sees no GPU; leave it out, or "
            "look at CUDA_VISIBLE_DEVICES and the driver"
        )
    torch.cuda.set_per_process_memory_fraction(share, device)


def why_no_gpu(device: Path = Path("/dev/nvidia0")) -> str:
    """Why torch finds none of the NVIDIA GPUs that this machine has, for people.

    "" if it finds one, if there is none, if CUDA_VISIBLE_DEVICES hides them, or if torch is not in use.

    Args:
        device: the first one's file.
    """
    torch = sys.modules.get("torch")
    if torch is None or not device.exists() or os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return ""
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built for processors"
    with warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return ""
    return " ".join(str(reason.message) for reason in reasons) or "torch finds no CUDA device"


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether this machine may have a GPU that torch can use, by its device files; other systems than Linux may.

    A process that asks torch has 140 MiB less afterwards.

    Args:
        devices: the folder of device files: of NVIDIA's driver, also under WSL 2, and of AMD's.
    """
    return sys.platform != "linux" or any((devices / name).exists() for name in ("nvidiactl", "dxg", "kfd"))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is a lack of memory: ours, Python's own, a device's, or torch's for the processor."""
    if isinstance(error, MemoryError | OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and (
        type(error).__name__ == "OutOfMemoryError" or any(text in str(error) for text in _TEXTS)
    )


def release_memory() -> None:
    """Give cached memory back to the devices in use, for what comes next or for other processes."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process, and others in its container, may still take; None if the system does not say.

    What Linux can free without swapping, and its swap (MemAvailable and SwapFree, proc(5)); at most what the limits of
    this process' control groups leave, whose cached files count as free.

    Args:
        root: where /proc and /sys are.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {name: int(value.split()[0]) << 10 for name, _, value in (line.partition(":") for line in lines)}
        free = sizes["MemAvailable"] + sizes.get("SwapFree", 0)
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return max(0, min([free, *_free_in_groups(root)]))


_GROUPS: Final = (
    ("0::", "sys/fs/cgroup", "memory.max", "memory.current", ""),
    (":memory:", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
"""Of versions 2 and 1: what the line of /proc/self/cgroup has, where the groups are, and their files' names."""


def _free_in_groups(root: Path) -> list[int]:
    """What each limit of the control groups of this process leaves, from its own group up."""
    free = list[int]()
    for mark, folder, limit, usage, prefix in _GROUPS:
        for group in groups_above(root, mark, folder):
            with contextlib.suppress(OSError, ValueError):  # no such group here, or no limit: "max"
                most, current = (int((group / name).read_text(encoding="ascii")) for name in (limit, usage))
                pairs = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
                cached = sum(int(pairs.get(f"{prefix}{name}", 0)) for name in ("active_file", "inactive_file"))
                free.append(most - current + cached)
    return free


def groups_above(root: Path, mark: str, folder: str) -> list[Path]:
    """The folders of the control groups that this process is in, its own first.

    Args:
        root: where /proc and /sys are.
        mark: what the line of /proc/self/cgroup has.
        folder: the topmost group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    top = root / folder
    path = next((line.partition(mark)[2].lstrip("/") for line in lines if mark in line), None)
    groups = [] if path is None else [top / path, *(top / path).parents]
    return [group for group in groups if group.is_relative_to(top)]


MAPPED_BYTES: Final = 4 << 20
"""From this size on a piece of memory is mapped by itself, and so goes back to the system as soon as it is freed."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_TRIM_BYTES: Final = 1 << 20


def set_aside() -> None:
    """Have the garbage collector leave alone all that is there: modules, classes and what belongs to the process.

    To be called once a process has started. A full collection goes through every object, 70,000 of an agent, 130,000 of
    a server and 210,000 of a ServerApp with PyTorch, which takes 40, 85 and 125 ms. It falls due about once in each
    round, and Flower's `to_numpy_ndarrays(keep_input=False)` asks for one each time.
    """
    gc.collect()
    gc.freeze()


def give_memory_back() -> None:
    """Have glibc (mallopt(3)) give back what is freed, for a process whose threads hold large buffers for a while.

    All threads share one arena: with one for each, what they freed stayed with them. Large arrays are mapped by
    themselves: glibc raises the size from which it does that to that of the largest it has seen freed, up to 32 MiB,
    and such an array between small objects keeps the heap from getting shorter; `trim` is for the smaller ones.
    Elsewhere nothing changes.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def trim() -> None:
    """Give free pages in the midst of the heap back to the system (malloc_trim(3)); milliseconds, if it finds many."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
