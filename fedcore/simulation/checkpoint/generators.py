"""States of random generators as plain JSON, and back."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np

from fedcore.errors import ConfigurationError

SavedGenerator: TypeAlias = list[Any]
"""Of a generator of Python's: its version, its numbers, and the second of a pair of normal values, if one is left."""


class PythonGenerator(Protocol):
    """A `random.Random`, or the module `random` for the generator of the process."""

    def getstate(self) -> tuple[Any, ...]: ...

    def setstate(self, state: tuple[Any, ...], /) -> None: ...


def save_random(generator: PythonGenerator) -> SavedGenerator:
    """The state of a generator."""
    version, numbers, normal = generator.getstate()
    return [version, list(numbers), normal]


def restore_random(generator: PythonGenerator, saved: SavedGenerator) -> None:
    """Put a generator back."""
    version, numbers, normal = saved
    generator.setstate((version, tuple(numbers), normal))


def save_generators() -> dict[str, Any]:
    """The states of the generators of this process that apps draw from: Python's, NumPy's, and PyTorch's if loaded."""
    name, keys, *rest = np.random.get_state(legacy=True)
    torch = sys.modules.get("torch")
    return {
        "random": save_random(random),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes().hex() if torch is not None else None,
    }


def restore_generators(saved: Mapping[str, Any]) -> None:
    """Put these generators back; raises ConfigurationError for what `save_generators` did not write."""
    with reading_state():
        restore_random(random, saved["random"])
        name, keys, *rest = saved["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), *rest))
        if saved["torch"] is not None:
            import torch

            torch.set_rng_state(torch.frombuffer(bytearray.fromhex(saved["torch"]), dtype=torch.uint8))


@contextlib.contextmanager
def reading_state() -> Iterator[None]:
    """Around what reads a saved state: raises ConfigurationError if it is not as fedcore writes it."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"the saved state of a simulation is not sound: {error!r}", check="unsound-state"
        ) from None
