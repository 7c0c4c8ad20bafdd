"""Every seed in one place: derived from what the work is, never from when it runs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator

import numpy as np
import torch

_DOMAIN = b"fedcore training seed v1"
_DEVICES_BUILT = any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")) or (
    torch.backends.mps.is_built()
)
"""Whether this torch knows any accelerator. If it does, only using one tells whether it is there."""


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2^32) that depends on all of `parts`, their types and their order.

    Neighbouring inputs (round 3, client 4 against round 4, client 3) give unrelated streams, which
    sums and products of the same numbers would not.
    """
    digest = hashlib.sha256(_DOMAIN)
    for part in parts:
        text = repr(part).encode()
        digest.update(len(text).to_bytes(4, "big") + text)
    return int.from_bytes(digest.digest()[:4], "big")


@contextlib.contextmanager
def preserve_generators() -> Iterator[None]:
    """Run a block that may seed the global generators of random, NumPy and torch, and draw from them.

    The states from before come back afterwards, so that seeding in one place never decides what is drawn in another.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    # Only the device that this process computes on; a loader process that was forked must not ask which it is.
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def seed_generators(seed: int) -> None:
    """Set the global generators of random, NumPy and torch, the last on the devices that are in use already.

    They draw the same as after `torch.manual_seed`, which takes fifty times as long: for each kind of accelerator that
    is not in use it keeps the seed for later, together with a trace of the stack.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with the global generators at `seed`: initial weights and dropout draw from them.

    The states from before come back afterwards.
    """
    with preserve_generators():
        seed_generators(seed)
        if _DEVICES_BUILT:  # the block may be the first to use one; this takes a millisecond
            torch.manual_seed(seed)
        yield


def be_deterministic() -> None:
    """From now on this process refuses operations whose result may differ from run to run, with a RuntimeError."""
    # cuBLAS reads it when it starts: https://docs.nvidia.com/cuda/cublas, section "Results reproducibility".
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
