"""What a process may have of a GPU's memory, and how a lack of memory is recognised and told.

Apart from `fedcore.training`: an app may train with something else, and its memory is limited all the same.
"""

from __future__ import annotations

import sys
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
    on top. device: by default the current one. Raises ConfigurationError where there is no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"memory-share = {share:g} is a share of a GPU's memory, and this process sees no GPU; leave it out, or "
            "look at CUDA_VISIBLE_DEVICES and the driver"
        )
    torch.cuda.set_per_process_memory_fraction(share, device)


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
