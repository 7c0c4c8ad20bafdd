"""Packing and stochastic rounding, against slow references."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.codec.fields import StochasticRounder, field_dtype, pack, padding, unpack

WIDTHS = (8, 10, 12, 16, 21, 32, 64)
BLOCK = 1 << 15


def stream(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def reference_words(fields: list[int], bits: int) -> list[int]:
    """The definition: field i at bit b * (i % k) of word i // k."""
    per_word = 64 // bits
    words = [0] * -(-len(fields) // per_word)
    for index, value in enumerate(fields):
        words[index // per_word] |= value << (bits * (index % per_word))
    return words


@given(st.sampled_from(WIDTHS), st.data())
def test_packing_in_pieces_equals_the_definition(bits: int, data: st.DataObject) -> None:
    fields = data.draw(st.lists(st.integers(0, (1 << bits) - 1), max_size=40))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(fields)), max_size=4)))
    words = np.zeros(-(-len(fields) // (64 // bits)), np.uint64)
    for start, stop in zip([0, *cuts], [*cuts, len(fields)], strict=True):
        pack(words, bits, start, np.array(fields[start:stop], field_dtype(bits)))
    assert words.tolist() == reference_words(fields, bits)
    start = data.draw(st.integers(0, len(fields)))
    stop = data.draw(st.integers(start, len(fields)))
    assert unpack(words, bits, start, stop - start).tolist() == fields[start:stop]
    assert padding(words, bits, len(fields)) == 0


@pytest.mark.parametrize("bits", WIDTHS)
def test_padding_sees_every_bit_that_belongs_to_no_field(bits: int) -> None:
    per_word = 64 // bits
    for count in range(1, 2 * per_word + 1):
        ones = [(1 << bits) - 1] * count
        used = reference_words(ones, bits)
        for bit in range(64 * len(used)):
            words = np.zeros(len(used), np.uint64)
            words[bit // 64] = np.uint64(1 << (bit % 64))
            belongs = used[bit // 64] >> (bit % 64) & 1
            assert bool(padding(words, bits, count)) != bool(belongs)
    assert padding(np.zeros(0, np.uint64), bits, 0) == 0


@pytest.mark.parametrize(
    ("bits", "levels"),
    [(8, 12), (8, 127), (10, 7), (12, 2047), (16, 7), (16, 4095), (16, 32767), (21, 2**20 - 1), (32, 2**31 - 1)],
)
def test_whole_numbers_are_exact_up_to_both_ends(bits: int, levels: int) -> None:
    rounder = StochasticRounder(field_bits=bits, levels=levels, randomness=stream(1))
    wanted = sorted({0, 1, -1, 2, 3, levels - 1, levels, -levels, 1 - levels})
    values = np.array(wanted, np.float64)
    exact = values.astype(np.float32).astype(np.float64)
    fields, _ = rounder.round(values.astype(np.float32), 1.0)
    clipped = np.clip(exact, -levels, levels)
    assert [int(field) - levels for field in fields] == clipped.tolist()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("value", [0.0, 0.25, -0.25, 0.001, -2.5, 3.7, -6.999])
def test_rounding_has_the_right_expectation(bits: int, value: float) -> None:
    rounder = StochasticRounder(field_bits=bits, levels=7, randomness=stream(3))
    values = np.full(BLOCK, value, np.float32)
    total, count = 0, 40
    seen = set()
    for _ in range(count):
        fields, _summary = rounder.round(values, 1.0)
        total += int(fields.astype(np.int64).sum())
        seen |= set((np.unique(fields).astype(int) - 7).tolist())
    mean = total / (count * BLOCK) - 7
    fraction = float(np.float32(value)) - math.floor(np.float32(value))
    deviation = math.sqrt(fraction * (1 - fraction) / (count * BLOCK))
    assert abs(mean - np.float32(value)) <= 5 * deviation + 2.0**-17
    assert seen <= {math.floor(value), math.ceil(value)}


def test_rounding_is_independent_from_element_to_element() -> None:
    rounder = StochasticRounder(field_bits=16, levels=7, randomness=stream(4))
    up = rounder.round(np.full(BLOCK, 0.5, np.float32), 1.0)[0].astype(np.float64) - 7.5
    again = rounder.round(np.full(BLOCK, 0.5, np.float32), 1.0)[0].astype(np.float64) - 7.5
    limit = 5 * 0.25 / math.sqrt(BLOCK)
    assert abs(float(np.mean(up[1:] * up[:-1]))) < limit
    assert abs(float(np.mean(up * again))) < limit


def test_the_random_bits_are_a_function_of_the_key() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    def fields(seed: int) -> list[int]:
        rounder = StochasticRounder(field_bits=16, levels=100, randomness=stream(seed))
        return rounder.round(values, 3.0)[0].tolist()

    assert fields(5) == fields(5)
    assert fields(5) != fields(6)


def test_clipping_is_counted_and_the_largest_value_is_from_before() -> None:
    rounder = StochasticRounder(field_bits=16, levels=10, randomness=stream(1))
    values = np.array([0, 10, -10, 10.5, -11, 3e38], np.float32)
    fields, summary = rounder.round(values, 1.0)
    assert (fields.astype(int) - 10).tolist() == [0, 10, -10, 10, -10, 10]
    assert summary.clipped == 3
    assert summary.largest == pytest.approx(3e38)
    fields, summary = rounder.round(values, 1e6)
    assert summary.largest == pytest.approx(3e44)  # more than float32 holds
    assert fields[-1] == 20


def test_a_value_just_below_zero_rounds_to_zero_not_to_minus_one() -> None:
    rounder = StochasticRounder(field_bits=16, levels=10, randomness=stream(1))
    fields, _ = rounder.round(np.full(1000, -1e-12, np.float32), 1.0)
    assert set(fields.tolist()) == {10}


@pytest.mark.parametrize(("units", "expected"), [(0.25, 0), (0.75, 1), (1.25, 1), (2**16 - 0.25, 2**16)])
def test_probabilities_are_the_nearest_multiple_of_2_to_the_minus_16(units: float, expected: int) -> None:
    rounder = StochasticRounder(field_bits=32, levels=7, randomness=stream(2))
    values = np.full(BLOCK, units / 2**16, np.float32)
    blocks = 100
    ups = sum(int((rounder.round(values, 1.0)[0] == 8).sum()) for _ in range(blocks))
    mean = blocks * BLOCK * expected / 2**16
    spread = math.sqrt(mean * (1 - expected / 2**16))
    assert abs(ups - mean) <= 4 * spread
