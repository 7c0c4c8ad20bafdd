"""Digits of metrics: enough for the smallest, and none that tell single values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.privacy import seeded

from fedcore.codec import CodecSettings, Decoded, Encoding, decode, encode, first_encoding
from fedcore.codec.encoding import MOST_DIGITS

SETTINGS = CodecSettings(metric_max=2.0**20)
NAMES = (("loss", None),)


def mean(values: list[float], examples: list[int], *, names: bool = True, settings: CodecSettings = SETTINGS) -> float:
    encoding = first_encoding(settings, None, len(values), metrics=NAMES if names else None)
    decoded, _ = summed(encoding, values, examples)
    one = decoded.metrics["loss"]
    assert isinstance(one, float)
    return one


def summed(encoding: Encoding, values: list[float], examples: list[int], seed: int = 0) -> tuple[Decoded, int]:
    """What is decoded, and the digits of the sum."""
    words = np.zeros(encoding.words, np.uint64)
    for number, (value, count) in enumerate(zip(values, examples, strict=True)):
        words += encode(
            encoding,
            base=None,
            local=None,
            examples=count,
            metrics={"loss": value},
            randomness=seeded(1000 * seed + number),
        ).words
    digits = words[encoding.sections["digits"]].tolist()
    return decode(encoding, words, survivors=len(values), base=None), sum(digits)


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("clients", [1, 3, 4, 100])
@pytest.mark.parametrize("examples", [1, 400, 1 << 17])
@pytest.mark.parametrize("size", [1e-12, 1e-9, 1e-7, 1e-4, 0.1, 1.0, 1e3, 2.0**20])
def test_a_metric_of_any_size_is_exact_to_a_millionth(size: float, examples: int, clients: int, names: bool) -> None:
    rng = np.random.default_rng(clients)
    for sign in (1, -1):
        values = [sign * size * float(rng.uniform(0.5, 1)) for _ in range(clients)]
        found = mean(values, [examples] * clients, names=names)
        assert found == pytest.approx(math.fsum(values) / clients, rel=1e-6, abs=0)


def test_clients_whose_metrics_differ_in_size() -> None:
    values, examples = [0.25, 1e-9, 3e-12, 1e5], [10, 100_000, 400, 1]
    exact = sum(value * count for value, count in zip(values, examples, strict=True)) / sum(examples)
    assert mean(values, examples) == pytest.approx(exact, rel=1e-6)


def test_what_was_exact_stays_exact() -> None:
    """Counts, and shares of the examples, whose products with the examples are whole."""
    assert mean([3.0, 5.0, 1e6], [100, 300, 1]) == (300 + 1500 + 1_000_000) / 401
    assert mean([67 / 300, 101 / 310, 5 / 20], [300, 310, 20]) == (67 + 101 + 5) / 630
    assert mean([0.0, 0.0], [7, 9]) == 0.0


def test_sums_of_a_query_are_exact() -> None:
    settings = CodecSettings(w_max=1, metric_max=2.0**40)
    assert first_encoding(settings, None, 3, metrics=NAMES).metric_digit_bits == 0
    for names in (True, False):
        assert mean([3.0, 0.5, 2.0**33 + 1], [1, 1, 1], names=names, settings=settings) == (2.0**33 + 4.5) / 3


def test_digits_do_not_tell_which_counts_a_sum_is_made_of() -> None:
    """n * float(k / n) is not k, and by how much it is not tells k; in the sum that is noise."""
    encoding = first_encoding(SETTINGS, None, 3, metrics=NAMES)
    values, examples = [67 / 300, 101 / 310, 5 / 20], [300, 310, 20]
    digits = [summed(encoding, values, examples, seed)[1] for seed in range(50)]
    assert len(set(digits)) == len(digits)
    spread = float(np.std([one - 2**64 if one > 2**63 else one for one in digits]))
    assert spread > 2.0 ** (encoding.metric_digit_bits - 6)


def test_a_small_value_does_not_show_below_large_ones() -> None:
    """Its digits are covered by the noise in those of the others."""
    encoding = first_encoding(SETTINGS, None, 3, metrics=NAMES)
    small, unit = 1.2345e-7, 2.0**-encoding.metric_fraction_bits
    digits = [summed(encoding, [0.5, 0.75, small], [200, 200, 1], seed)[1] for seed in range(50)]
    parts = [math.ldexp(one, -encoding.metric_digit_bits) * unit for one in digits]
    near = [abs(part - small % unit) < small / 100 for part in parts]
    assert sum(near) < len(near) / 4


def test_until_names_are_known_only_the_first_values_have_digits() -> None:
    """The others are as exact as one word is."""
    encoding = first_encoding(SETTINGS, None, 2, metrics=None)
    values = [1e-7 * (1 + slot % 7) for slot in range(MOST_DIGITS + 6)]
    words = np.zeros(encoding.words, np.uint64)
    for number in range(2):
        words += encode(
            encoding, base=None, local=None, examples=400, metrics={"all": values}, randomness=seeded(number)
        ).words
    decoded = decode(encoding, words, survivors=2, base=None).metrics["all"]
    assert isinstance(decoded, list)
    unit = 2.0**-encoding.metric_fraction_bits / 400
    assert decoded[:MOST_DIGITS] == pytest.approx(values[:MOST_DIGITS], rel=1e-6)
    assert decoded[MOST_DIGITS:] == pytest.approx(values[MOST_DIGITS:], rel=0, abs=unit / 2)
