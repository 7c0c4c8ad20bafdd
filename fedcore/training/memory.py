"""Runs work that may exhaust the memory: frees what it used, and says which setting to lower."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedcore.errors import OutOfMemory
from fedcore.system.memory import WHAT_TO_LOWER, is_out_of_memory
from fedcore.training.engines import Engine

_Result = TypeVar("_Result")


def within_memory(engine: Engine, work: Callable[[], _Result], doing: str) -> _Result:
    """The result of `work`; raises OutOfMemory in place of an error about memory, with gradients and caches released.

    The batch, the graph and the activations hang on the frames of the error, so the new error must not have it as its
    cause: what `work` alone refers to is free by then.

    Args:
        doing: what was done, for the message.
    """
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).strip().partition("\n")[0]
    engine.free()
    share = engine.config.memory_share
    limit = f", or raise memory-share, which is {share:g}" if share else ""
    raise OutOfMemory(f"no memory for {doing} on {engine.device}: {WHAT_TO_LOWER}{limit} ({reason})")
