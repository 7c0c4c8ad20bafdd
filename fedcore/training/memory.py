"""Work that finds no memory: what it held is given back, and whoever can help is told what to lower."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedcore.errors import OutOfMemory
from fedcore.system.memory import WHAT_TO_LOWER, is_out_of_memory
from fedcore.training.engines import Engine

_Result = TypeVar("_Result")


def within_memory(engine: Engine, work: Callable[[], _Result], doing: str) -> _Result:
    """The result of `work`; raises OutOfMemory in place of an error about memory, with gradients and caches released.

    doing: what was done, for the message. What `work` keeps to itself is free by then: batch, graph and activations
    hang on the frames of the error, so that this must not live on as the other one's cause.
    """
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        said = str(error).strip().partition("\n")[0]
    engine.free()
    share = engine.config.memory_share
    limit = f", or raise memory-share, which is {share:g}" if share else ""
    raise OutOfMemory(f"no memory for {doing} on {engine.device}: {WHAT_TO_LOWER}{limit} ({said})")
