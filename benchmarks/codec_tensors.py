"""Tensors as models have them side by side, exchange by exchange: the error of each over its own bound."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.codec import CodecSettings, Decoded, Encoding, ScaleTrack, decode, encode
from fedcore.codec.scaling.error_bound import error_bound_of
from fedcore.errors import RoundingTooCoarse, UpdateTooLarge
from fedcore.state import ModelState

EXCHANGES = 5
EXAMPLES = (400, 410, 420, 430)
"""Far below the default of w_max."""
MOST_REPEATS = 4
_ROWS, _WIDTH = 500, 16

Arrays = dict[str, NDArray[Any]]


def _apart(rng: np.random.Generator) -> Arrays:
    """Large and small tensors, whose updates differ by 1e9 and by 1e15."""
    return {
        "loud": rng.normal(0, 1e6, 2_000).astype(np.float32),
        "quiet": rng.normal(0, 1e-3, 2_000).astype(np.float32),
        "variance": rng.normal(0, 1e8, 12).astype(np.float32),
        "bias": rng.normal(0, 1e-1, 12).astype(np.float32),
        "moment": rng.normal(0, 1e-7, 12).astype(np.float32),
    }


def _embedding(rng: np.random.Generator) -> Arrays:
    """Three rows of five hundred change, other ones at each client."""
    table = np.zeros((_ROWS, _WIDTH), np.float32)
    table[rng.integers(0, _ROWS, 3)] = rng.normal(0, 0.01, (3, _WIDTH))
    return {"embedding": table}


def _adamw(rng: np.random.Generator) -> Arrays:
    """Weights, their moments and step counters, of a large layer and of a small one."""
    return {
        f"{layer}/{name}": value
        for layer, size in (("large", 3_000), ("small", 30))
        for name, value in {
            "weight": rng.normal(0, 1e-3, size).astype(np.float32),
            "exp_avg": rng.normal(0, 1e-4, size).astype(np.float32),
            "exp_avg_sq": rng.gamma(1, 1e-8, size).astype(np.float32),
            "step": np.full(1, 4.0, np.float32),
        }.items()
    }


def _integers(rng: np.random.Generator) -> Arrays:
    """Counters and switches next to floats."""
    return {
        "batches": np.array(rng.integers(1, 1_000), np.int64),
        "counts": rng.integers(0, 1 << 40, 50),
        "bytes": rng.integers(0, 200, 9).astype(np.uint8),
        "switch": rng.random(20) < 0.5,
        "weight": rng.normal(0, 0.01, 2_000).astype(np.float32),
    }


def _half(rng: np.random.Generator) -> Arrays:
    """Large and small tensors in float16, next to float32."""
    return {
        "large": rng.normal(0, 1e-2, 3_000).astype(np.float16),
        "small": rng.normal(0, 1e-2, 30).astype(np.float16),
        "other": rng.normal(0, 1e4, 3_000).astype(np.float32),
    }


CASES: Mapping[str, Callable[[np.random.Generator], Arrays]] = {
    "apart": _apart,
    "embedding": _embedding,
    "adamw": _adamw,
    "integers": _integers,
    "float16": _half,
}


def worst_ratio(case: str, bits: int, *, exchanges: int = EXCHANGES) -> float:
    """The largest error of an element over the bound of its tensor, in a run's exchanges one after the other."""
    rng, draw = np.random.default_rng(1), CASES[case]
    base = ModelState.from_arrays({name: np.zeros_like(value) for name, value in draw(rng).items()})
    track, settings, worst = ScaleTrack(), CodecSettings(field_bits=bits), 0.0
    for _ in range(exchanges):
        locals_ = [ModelState.from_arrays(draw(rng)) for _ in EXAMPLES]
        encoding, decoded = _opened(track, settings, base, locals_)
        assert decoded.state is not None
        bounds = error_bound_of(encoding, decoded, base, locals_, EXAMPLES)
        for name, value in decoded.state.items():
            exact = np.average([one[name].astype(np.float64) for one in locals_], axis=0, weights=EXAMPLES)
            worst = max(worst, float(np.abs(value.astype(np.float64) - exact).max()) / bounds[name])
    return worst


def _opened(
    track: ScaleTrack, settings: CodecSettings, base: ModelState, locals_: Sequence[ModelState]
) -> tuple[Encoding, Decoded]:
    """The first sum that opens, as a server asks for it, and its encoding."""
    for number in range(MOST_REPEATS + 1):
        encoding = track.encoding(settings, base.layout, len(locals_), metrics=(), failures=0, again=number > 0)
        total = np.zeros(encoding.words, np.uint64)
        for local, examples in zip(locals_, EXAMPLES, strict=True):
            total += encode(
                encoding, base=base, local=local, examples=examples, metrics={}, randomness=os.urandom
            ).words
        try:
            decoded = decode(encoding, total, survivors=len(locals_), base=base)
        except UpdateTooLarge as error:
            track.learn_overflow(encoding, error.statistics)
        except RoundingTooCoarse as error:
            track.learn_coarse(encoding, error.statistics)
        else:
            track.learn(decoded.statistics)
            return encoding, decoded
    raise AssertionError("no sum opens")
