"""Data sets of which `--smallest` takes a few examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import fedcore.data
from fedcore.data import Dataset, Split


def every(step: int, loader: str) -> None:
    """Let a loader of `fedcore.data` give every `step`-th example in this process from now on."""
    whole: Callable[..., Dataset] = getattr(fedcore.data, loader)

    def load(*arguments: Any, **named: Any) -> Dataset:
        found = whole(*arguments, **named)
        return replace(found, train=_every(step, found.train), test=_every(step, found.test))

    setattr(fedcore.data, loader, load)


def _every(step: int, split: Split) -> Split:
    return split.take(np.arange(0, len(split), step))
