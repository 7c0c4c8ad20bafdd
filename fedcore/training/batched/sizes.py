"""How many clients train fastest in one batch."""

from __future__ import annotations

import torch

from fedcore.training.engines import Engine

_MOST = 64
_LEAST = 32
"""A model of which fewer fit is so large that its steps are arithmetic: then four at once take twice as long as one
after the other, and 20 as long (benchmarks/simulation.py, benchmarks/batched.py)."""
_CACHE_BYTES = 16 << 20
"""Of stacked parameters on a processor. Beyond its caches each step waits for memory."""
_DEVICE_SHARE = 16
"""Of the memory of an accelerator, the part that stacked parameters may have: as much again is for gradients, twice as
much for an optimizer's state, and the rest for activations."""


def clients_that_pay(engine: Engine) -> int:
    """How many clients of the engine's model train fastest at once, 1 if one by one is faster.

    A function of model and device alone, so that a simulation repeats bit for bit.
    """
    own = sum(parameter.numel() * parameter.element_size() for parameter in engine.parameters())
    room = _CACHE_BYTES
    if engine.device.type == "cuda":
        room = torch.cuda.get_device_properties(engine.device).total_memory // _DEVICE_SHARE
    clients = min(_MOST, room // max(own, 1))
    return clients if clients >= _LEAST else 1
