"""What long-lived processes tell the interpreter's garbage collector and the C library's heap about themselves."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import Final

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
