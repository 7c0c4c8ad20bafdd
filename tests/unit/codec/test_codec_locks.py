"""The keys of clients that failed come out of the sum of their powers, where they are few enough."""

from __future__ import annotations

import numpy as np
import pytest
from support.privacy import seeded
from support.raising import raises

from fedcore.codec.locks import LIMBS, PRIME, carry_noise_bits, draw_key, find_keys, power_words
from fedcore.errors import PeerError


def keys_and_sum(count: int, failures: int, n_max: int = 40) -> tuple[list[int], np.ndarray]:
    chance = seeded(count)
    keys = [draw_key(chance) for _ in range(count)]
    total = np.zeros(failures * LIMBS, np.uint64)
    for key in keys:
        total += power_words(key, failures, n_max, chance)
    return keys, total


@pytest.mark.parametrize(("count", "failures"), [(0, 0), (0, 2), (1, 1), (1, 3), (2, 2), (3, 5), (5, 5)])
def test_the_keys_come_out_of_their_power_sums(count: int, failures: int) -> None:
    keys, total = keys_and_sum(count, failures)
    assert sorted(find_keys(total, count)) == sorted(keys)


@pytest.mark.parametrize(("count", "claimed", "failures"), [(2, 1, 2), (3, 2, 3), (1, 0, 1)])
def test_another_number_of_keys_does_not_fit(count: int, claimed: int, failures: int) -> None:
    _, total = keys_and_sum(count, failures)
    with raises(PeerError, check="failure-keys"):
        find_keys(total, claimed)


def test_two_keys_in_one_sum_are_any_two() -> None:
    """With one more key than power sums each of them fits any other: the sum of two is a uniform element."""
    keys, total = keys_and_sum(2, 1)
    (found,) = find_keys(total, 1)
    assert found == sum(keys) % PRIME
    assert found not in keys


def test_a_key_that_two_clients_share_is_malformed() -> None:
    total = power_words(5, 2, 4, seeded(1)) + power_words(5, 2, 4, seeded(2))
    with raises(PeerError, check="failure-keys"):
        find_keys(total, 2)


def test_limbs_hide_how_often_they_were_carried_over() -> None:
    """The same power is cut in another way each time, and the sum of as many clients as allowed does not wrap."""
    one, other = power_words(5, 1, 4, seeded(1)), power_words(5, 1, 4, seeded(2))
    assert not np.any(one == other)
    for n_max in (1, 4, 2**24, 2**28):
        assert n_max * 2.0 ** (16 + carry_noise_bits(n_max)) * 1.001 < 2**63
