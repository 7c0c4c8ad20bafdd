"""Noise of two distributions from a cryptographic source: exact tables, and a key stream inverted through them.

    Skellam(v)            the difference of two Poisson variables of mean v/2: P(k) = e^-v I_k(v)
    discrete Gaussian(v)  P(k) proportional to e^(-k^2 / 2v)

A table holds the distribution function of the magnitude, P(|X| <= k), as whole multiples of 2^-127, so that 127 random
bits decide a magnitude and one more the sign. How far that is from the distribution itself (total variation, for one
draw) is `NoiseTable.distance`, the sum of three terms:

    tail       magnitudes above `bound` are given to `bound`: less than 2^-127, by the Chernoff bounds below;
    rounding   each of the `bound` entries is rounded down to a multiple of 2^-127;
    weights    the relative error of the weights, from `_GUARD_BITS` more bits and a start further out: less than
               2^-127 altogether for any table of at most `MAX_BOUND` entries.

No floating point number takes part, so none of the attacks on floating point noise apply (Mironov 2012, CCS).
Sources: Agarwal, Kairouz, Liu 2021 (NeurIPS), section 3, for Skellam; Canonne, Kamath, Steinke 2020 (NeurIPS) for the
discrete Gaussian, whose own sampler needs no table but takes one draw at a time.

The server must not be able to predict noise, or it could take it off again. So the random bits are ChaCha20's, never
NumPy's or torch's, and each use of a key has a nonce of its own.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedcore.errors import EncodingError

Mechanism = Literal["skellam", "discrete-gaussian"]
MECHANISMS: tuple[Mechanism, ...] = ("skellam", "discrete-gaussian")

MAX_BOUND = 1 << 23
"""Longest table, 128 MiB: a standard deviation of about 600,000 steps."""

_FRACTION_BITS = 127
_LOW_BITS = 64
_LOW_MASK = (1 << _LOW_BITS) - 1
_GUARD_BITS = 192
_TAIL_BITS = 128
_START_BITS = 192


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseTable:
    """P(|X| <= k) * 2^127 for k = 0 to bound - 1, as 63 high bits and 64 low bits, each uint64 [bound]."""

    bound: int
    high: NDArray[np.uint64] = field(repr=False)
    low: NDArray[np.uint64] = field(repr=False)

    @property
    def distance(self) -> float:
        """Largest total variation distance of one draw from the distribution itself."""
        return table_distance(self.bound)


def table_distance(bound: int) -> float:
    """Largest total variation distance of one draw by a table of `bound` entries: see the module's text."""
    return math.ldexp(bound + 2, -_FRACTION_BITS)


def noise_bound(mechanism: Mechanism, variance: float) -> int:
    """The largest magnitude that a table of this variance gives; raises EncodingError if no table can be made."""
    if not (0 < variance < math.inf):
        raise EncodingError(f"the variance of a noise share is {variance!r}; it must be greater than 0")
    bound = _cutoff(mechanism, variance, _TAIL_BITS) - 1
    if bound > MAX_BOUND:
        raise EncodingError(
            f"noise with a standard deviation of {math.sqrt(variance):.3g} steps needs too large a table; "
            "lower the noise multiplier",
            check="noise-table",
        )
    return bound


@functools.lru_cache(maxsize=4)
def noise_table(mechanism: Mechanism, variance: float) -> NoiseTable:
    """The table of a distribution with this variance (of the discrete Gaussian: its parameter sigma^2)."""
    bound = noise_bound(mechanism, variance)
    weigh = _skellam_weights if mechanism == "skellam" else _gaussian_weights
    weights = weigh(variance, _cutoff(mechanism, variance, _START_BITS))
    total = 2 * sum(weights) - weights[0]
    high, low = np.empty(bound, np.uint64), np.empty(bound, np.uint64)
    below = -weights[0]  # zero has one sign only
    for k in range(bound):
        below += 2 * weights[k]
        entry = (below << _FRACTION_BITS) // total
        high[k], low[k] = entry >> _LOW_BITS, entry & _LOW_MASK
    high.flags.writeable = low.flags.writeable = False
    return NoiseTable(bound=bound, high=high, low=low)


def _cutoff(mechanism: Mechanism, variance: float, bits: int) -> int:
    """The smallest t for which P(|X| >= t) <= 2^(1 - bits) follows from the Chernoff bound of one side."""
    rate = _skellam_rate if mechanism == "skellam" else _gaussian_rate
    enough = bits * math.log(2)
    high = 1
    while rate(high, variance) < enough:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rate(middle, variance) < enough else (low, middle)
    return high


def _skellam_rate(t: int, variance: float) -> float:
    """-log of the Chernoff bound on P(X >= t): sup over s of s t - v (cosh s - 1), at s = asinh(t / v)."""
    s = math.asinh(t / variance)
    # cosh s - 1 = 2 sinh^2(s / 2), without the cancellation for small s.
    return t * s - 2 * variance * math.sinh(s / 2) ** 2


def _gaussian_rate(t: int, variance: float) -> float:
    """-log of the Chernoff bound on P(X >= t), from E[e^(sX)] <= e^(s^2 v / 2) (Canonne et al. 2020)."""
    return t * t / (2 * variance)


def _skellam_weights(variance: float, last: int) -> list[int]:
    """Multiples of I_0(v) to I_last(v), by Miller's backward recurrence (DLMF 3.6(iii), 10.74(iv)).

    I_(k-1) = I_(k+1) + (2k / v) I_k has positive terms only, so rounding errors stay relative: at most 2^-192 a step.
    Beginning with 0 above `last` is wrong by less than P(last + 1) in every entry, which is below 2^-192.
    """
    numerator, denominator = variance.as_integer_ratio()
    weights = [0] * (last + 2)
    weights[last] = 1 << _GUARD_BITS
    for k in range(last, 0, -1):
        weights[k - 1] = weights[k + 1] + 2 * k * denominator * weights[k] // numerator
    return weights


def _gaussian_weights(variance: float, last: int) -> list[int]:
    """2^384 * e^(-k^2 / 2v) for k = 0 to last; each is off by less than k^2 units, far below 2^-192 of the total."""
    bits = 2 * _GUARD_BITS
    with decimal.localcontext(prec=math.ceil(bits * math.log10(2)) + 20):
        base = (decimal.Decimal(-1) / (2 * decimal.Decimal(variance))).exp()
        factor = int(base * (1 << bits))  # e^(-(2k + 1) / 2v), for k = 0
    square = factor * factor >> bits
    weights = [1 << bits]
    for _ in range(last):
        weights.append(weights[-1] * factor >> bits)
        factor = factor * square >> bits
    return weights


BLOCK: Final = 1 << 15
"""Draws made at a time: their 64-bit words, indices and result fit the second-level cache."""

NOISE: Final = b"dp/noise/v1."
ROUNDING: Final = b"dp/round/v1."
_KEY_BYTES: Final = 32
_COUNTER: Final = bytes(4)
_ONE: Final = np.uint64(1)


class KeyStream:
    """ChaCha20 (RFC 8439) under a fresh key from `randomness(32)`; `usage` ([12] bytes) is its nonce."""

    def __init__(self, randomness: Callable[[int], bytes], usage: bytes) -> None:
        cipher = Cipher(algorithms.ChaCha20(randomness(_KEY_BYTES), _COUNTER + usage), mode=None)
        self._stream = cipher.encryptor()
        self._zeros = b""

    def fill(self, out: NDArray[Any]) -> None:
        """Overwrite `out`, contiguous, of an unsigned integer dtype, with uniform random bits."""
        if len(self._zeros) < out.nbytes:
            self._zeros = bytes(out.nbytes)
        self._stream.update_into(memoryview(self._zeros)[: out.nbytes], out.view(np.uint8).data)


class NoiseSampler:
    """Independent draws from the distribution of a table.

    A draw takes one 64-bit word: the lowest bit is the sign, the others are the first 63 bits of a uniform number U in
    [0, 1). The magnitude is the number of table entries that are at most U. Only if an entry begins with the very
    same 63 bits the next 64 are drawn, so the decision is by 127 bits at the price of 63.
    """

    def __init__(self, table: NoiseTable, randomness: Callable[[int], bytes]) -> None:
        self._table = table
        self._stream = KeyStream(randomness, NOISE)
        self._words = np.empty(BLOCK, np.uint64)

    def draw(self, count: int) -> NDArray[np.int64]:
        """int64 [count], count <= BLOCK."""
        words = self._words[:count]
        self._stream.fill(words)
        signs = (words & _ONE).view(np.int64)
        words >>= _ONE
        drawn = self.magnitudes(words)
        signs *= -2
        signs += 1
        drawn *= signs
        return drawn

    def magnitudes(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many entries are at most U; `words` ([m]) are the first 63 bits of each U."""
        high = self._table.high
        indices: NDArray[np.int64] = np.searchsorted(high, words).astype(np.int64, copy=False)
        undecided = np.flatnonzero(high[np.minimum(indices, high.size - 1)] == words)
        for position in undecided.tolist():
            indices[position] = self._decide(int(words[position]), int(indices[position]))
        return indices

    def _decide(self, word: int, first: int) -> int:
        """The magnitude if entries from `first` on begin with `word`: 64 more bits of U decide."""
        more = np.empty(1, np.uint64)
        self._stream.fill(more)
        magnitude = first
        while (
            magnitude < self._table.bound
            and self._table.high[magnitude] == word
            and self._table.low[magnitude] <= more[0]
        ):
            magnitude += 1
        return magnitude
