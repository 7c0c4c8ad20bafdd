"""Deterministic stand-ins for the operating system's randomness, and plans, for tests of differential privacy."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.codec import CodecSettings, PrivateEncoding, private_encoding
from fedcore.codec.privacy import PrivacyPlan
from fedcore.run.privacy_budget import privacy_plan
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState

CODEC = CodecSettings(clip_norm=1.0)


def seeded(seed: int) -> Callable[[int], bytes]:
    """`randomness` that gives other bytes at each call and the same ones in each run."""
    count = itertools.count()
    return lambda size: hashlib.shake_256(f"{seed}/{next(count)}".encode()).digest(size)


def plan(**settings: Any) -> PrivacyPlan:
    """The plan of a job with clip-norm 1 and a noise multiplier of 1, where `settings` say nothing else.

    Tests may ask for less noise than any job gets.
    """
    values = {"clip_norm": 1.0, "dp_noise_multiplier": 1.0, "evaluate_metrics": ("loss",), **settings}
    multiplier = values["dp_noise_multiplier"]
    made = privacy_plan(JobSettings(**{**values, "dp_noise_multiplier": multiplier and max(multiplier, 1.0)}))
    assert made is not None
    return replace(made, noise_multiplier=multiplier or made.noise_multiplier)


def weights(*values: float, size: int = 0) -> ModelState:
    """A model of one float32 tensor: `values`, then zeros up to `size`."""
    array = np.zeros(max(size, len(values)), np.float32)
    array[: len(values)] = values
    return ModelState.from_arrays({"weight": array})


def encoding_for(size: int, *, n_max: int = 3, noise_clients: int = 3, **settings: Any) -> PrivateEncoding:
    """The encoding of updates of `size` weights."""
    layout = weights(size=size).layout
    return private_encoding(CODEC, layout, n_max, plan=plan(**settings), noise_clients=noise_clients)
