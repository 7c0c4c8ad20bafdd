"""The noise: its tables against arbitrary-precision references, its sampler against its tables."""

from __future__ import annotations

import itertools
import math
import os

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from support.privacy import seeded
from support.raising import raises

from fedcore.codec.privacy import (
    BLOCK,
    ROUNDING,
    KeyStream,
    Mechanism,
    NoiseSampler,
    NoiseTable,
    noise_bound,
    noise_table,
)
from fedcore.codec.privacy.noise import MAX_BOUND, MECHANISMS, NOISE
from fedcore.errors import EncodingError

VARIANCES = (0.05, 0.9, 7.7, 123.4)
ONE = mpmath.mpf(1)


def exact(mechanism: Mechanism, variance: float, count: int) -> list[mpmath.mpf]:
    """P(|X| = k) for k < count, to 80 digits."""
    with mpmath.workdps(80):
        if mechanism == "skellam":
            halves = [mpmath.exp(-variance) * mpmath.besseli(k, variance) for k in range(count)]
        else:
            weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(variance))) for k in range(4 * count + 40)]
            total = 2 * sum(weights) - weights[0]
            halves = [weight / total for weight in weights[:count]]
        return [half * (2 if k else 1) for k, half in enumerate(halves)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("variance", VARIANCES)
def test_a_table_is_as_close_to_the_distribution_as_it_says(mechanism: Mechanism, variance: float) -> None:
    table = noise_table(mechanism, variance)
    with mpmath.workdps(80):
        entries = [(int(high) << 64) + int(low) for high, low in zip(table.high, table.low, strict=True)]
        edges = [0, *entries, 1 << 127]
        masses = [(ONE * (after - before)) / (1 << 127) for before, after in itertools.pairwise(edges)]
        wanted = exact(mechanism, variance, len(masses))
        beyond = 1 - sum(wanted)
        distance = (sum(abs(mass - want) for mass, want in zip(masses, wanted, strict=True)) + beyond) / 2
    assert float(distance) <= table.distance
    assert table.distance < 2.0**-115


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_draws_have_the_moments_of_their_distribution(mechanism: Mechanism) -> None:
    variance, count = 400.0, 32
    sampler = NoiseSampler(noise_table(mechanism, variance), seeded(1))
    draws = np.concatenate([sampler.draw(BLOCK) for _ in range(count)]).astype(np.float64)
    # Five standard errors of each moment, for a distribution close to a normal one.
    errors = 5 / math.sqrt(draws.size)
    assert abs(draws.mean()) < errors * math.sqrt(variance)
    assert abs(draws.var() / variance - 1) < errors * math.sqrt(2)
    assert abs((draws**3).mean()) < errors * math.sqrt(15) * variance**1.5
    excess = 1 / variance if mechanism == "skellam" else 0.0
    assert abs((draws**4).mean() / variance**2 - 3 - excess) < errors * math.sqrt(96)


def test_every_value_comes_as_often_as_it_should() -> None:
    variance = 2.0
    sampler = NoiseSampler(noise_table("skellam", variance), seeded(2))
    draws = np.concatenate([sampler.draw(BLOCK) for _ in range(16)])
    wanted = [float(mass) / (2 if k else 1) for k, mass in enumerate(exact("skellam", variance, 6))]
    for value in range(-5, 6):
        rate = wanted[abs(value)]
        found = np.count_nonzero(draws == value) / draws.size
        assert abs(found - rate) < 5 * math.sqrt(rate / draws.size)


def hand_made(*entries: int) -> NoiseTable:
    """A table with these 127-bit entries."""
    high = np.array([entry >> 64 for entry in entries], np.uint64)
    low = np.array([entry & (2**64 - 1) for entry in entries], np.uint64)
    return NoiseTable(bound=len(entries), high=high, low=low)


def test_64_more_bits_decide_where_the_first_63_do_not() -> None:
    word = 12345
    table = hand_made(5 << 64, (word << 64) + 2**63, (word << 64) + 2**63 + 2**62, 1 << 126)
    sampler = NoiseSampler(table, seeded(3))
    found = sampler.magnitudes(np.full(4000, word, np.uint64))
    # U is below the second entry with chance 1/2, between the two with 1/4, above both with 1/4.
    counts = np.bincount(found, minlength=4)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / 4000, [0.5, 0.25, 0.25], atol=0.04)
    np.testing.assert_array_equal(sampler.magnitudes(np.array([4, 6, word + 1], np.uint64)), [0, 1, 3])


def test_noise_is_chacha20_and_each_use_has_its_own_stream() -> None:
    key = bytes(range(32))
    words = np.zeros(8, np.uint64)
    KeyStream(lambda size: key[:size], NOISE).fill(words)
    cipher = Cipher(algorithms.ChaCha20(key, bytes(4) + b"dp/noise/v1."), mode=None)
    assert words.tobytes() == cipher.encryptor().update(bytes(64))
    other = np.zeros(8, np.uint64)
    KeyStream(lambda size: key[:size], ROUNDING).fill(other)
    assert not (words == other).any()


def test_seeds_of_numpy_do_not_matter() -> None:
    table = noise_table("skellam", 1e6)
    draws = []
    for _ in range(2):
        np.random.seed(0)
        draws.append(NoiseSampler(table, os.urandom).draw(100))
    assert (draws[0] != draws[1]).any()


def test_a_stream_goes_on_and_never_repeats() -> None:
    sampler = NoiseSampler(noise_table("skellam", 1e6), seeded(4))
    first = sampler.draw(200).copy()
    assert (first != sampler.draw(200)).any()


@pytest.mark.parametrize("variance", [0.0, -1.0, math.nan, math.inf])
def test_a_variance_that_is_none(variance: float) -> None:
    with pytest.raises(EncodingError, match="variance"):
        noise_bound("skellam", variance)


def test_a_table_that_would_be_too_large() -> None:
    with raises(EncodingError, check="noise-table"):
        noise_bound("skellam", 1e13)
    assert noise_bound("skellam", 3e11) <= MAX_BOUND
