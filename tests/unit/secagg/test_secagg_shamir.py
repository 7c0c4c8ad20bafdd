"""Shamir sharing over GF(2^256 + 297): any t shares rebuild, fewer tell nothing, wrong ones are noticed."""

from __future__ import annotations

import hashlib
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import UnmaskFailed, UsageError
from fedcore.secagg import Secret
from fedcore.secagg.crypto import polynomial, shamir
from fedcore.secagg.crypto.polynomial import PRIME, SmallPoints
from fedcore.secagg.crypto.shamir import Rebuilder
from tests.support.raising import raises

SECRETS = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32]))


def _randomness(seed: object):
    counter = itertools.count()
    return lambda size: hashlib.shake_256(f"{seed}/{next(counter)}".encode()).digest(size)


def _split(secret: bytes, threshold: int, holders: int, seed: object = "dealer") -> dict[int, bytes]:
    """Point -> share."""
    shares = shamir.split(Secret(secret), threshold=threshold, holders=holders, randomness=_randomness(seed))
    return dict(enumerate(shares, start=1))


def _rebuilder(threshold: int, holders: int, randomness=None) -> Rebuilder:
    return Rebuilder(threshold=threshold, holders=holders, randomness=randomness or _randomness("server"))


def _is_prime(n: int) -> bool:
    """Miller-Rabin with forty fixed bases."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(
        pow(base, odd, n) == 1 or any(pow(base, odd << k, n) == n - 1 for k in range(twos)) for base in range(2, 42)
    )


def test_p_is_the_smallest_prime_above_2_to_the_256():
    assert _is_prime(PRIME)
    assert not any(_is_prime(n) for n in range(2**256, PRIME))


@st.composite
def _sharings(draw):
    holders = draw(st.integers(1, 9))
    threshold = draw(st.integers(1, holders))
    secret = draw(SECRETS)
    return secret, threshold, _split(secret, threshold, holders, draw(st.integers()))


@given(_sharings(), st.randoms(use_true_random=False))
def test_any_subset_of_t_shares_rebuilds(sharing, random):
    secret, threshold, shares = sharing
    chosen = random.sample(sorted(shares), random.randint(threshold, len(shares)))
    rebuilder = _rebuilder(threshold, len(shares))
    found = rebuilder.rebuild({v: shares[v] for v in chosen}, lambda s: s.reveal() == secret)
    assert found == Secret(secret)


@given(_sharings(), SECRETS)
def test_fewer_than_t_shares_fit_every_secret(sharing, other):
    """Perfect secrecy: with t - 1 shares known, every secret has a last share that completes it."""
    _, threshold, shares = sharing
    points = sorted(shares)[:threshold]
    small = SmallPoints(len(shares))
    *weights, last = small.weights_at_zero(points, small.scales(points))
    known = sum(weight * int.from_bytes(shares[point], "big") for weight, point in zip(weights, points, strict=False))
    missing = (int.from_bytes(other, "big") - known) * pow(last, -1, PRIME) % PRIME
    completed = {point: shares[point] for point in points} | {points[-1]: missing.to_bytes(33, "big")}
    assert _rebuilder(threshold, len(shares)).rebuild(completed, lambda _: True) == Secret(other)


@given(st.data())
def test_one_wrong_share_is_noticed_where_there_is_one_to_spare(data):
    n = data.draw(st.integers(2, 14))
    threshold = data.draw(st.integers(1, n - 1))
    shares = _split(data.draw(SECRETS), threshold, n)
    liar, error = data.draw(st.integers(1, n)), data.draw(st.integers(1, PRIME - 1))
    shares[liar] = ((int.from_bytes(shares[liar], "big") + error) % PRIME).to_bytes(33, "big")
    assert _rebuilder(threshold, n).rebuild(shares, lambda _: True) is None


def test_a_secret_that_nobody_published_is_none():
    shares = _split(bytes(32), 3, 7)
    tried = []
    assert _rebuilder(3, 7).rebuild(shares, lambda s: bool(tried.append(s))) is None
    assert len(tried) == 1


@pytest.mark.parametrize("value", [2**256, PRIME - 1])
def test_a_secret_above_32_bytes_is_never_offered(value):
    shares = {point: value.to_bytes(33, "big") for point in (1, 2, 3)}
    assert _rebuilder(2, 3).rebuild(shares, lambda _: True) is None
    largest = _rebuilder(2, 3).rebuild(dict.fromkeys(shares, (2**256 - 1).to_bytes(33, "big")), lambda _: True)
    assert largest == Secret(b"\xff" * 32)


def test_too_few_shares():
    with raises(UnmaskFailed, numbers=(2, 3)):
        _rebuilder(3, 5).rebuild({1: bytes(33), 2: bytes(33)}, lambda _: True)


def test_weights_are_computed_once_for_equal_points():
    draws = []
    randomness = _randomness("server")
    rebuilder = _rebuilder(2, 3, lambda size: draws.append(size) or randomness(size))
    for number in range(5):
        secret = hashlib.sha256(b"%d" % number).digest()
        shares = _split(secret, 2, 3, number)
        assert rebuilder.rebuild(shares, lambda s, secret=secret: s.reveal() == secret)
    assert len(draws) == 1


@pytest.mark.parametrize(
    ("secret", "threshold", "holders", "says"),
    [
        (bytes(31), 2, 3, "32"),
        (bytes(33), 2, 3, "32"),
        (bytes(32), 0, 3, "threshold"),
        (bytes(32), 4, 3, "threshold"),
        (bytes(32), 1, 0, "threshold"),
    ],
)
def test_a_sharing_that_cannot_be(secret, threshold, holders, says):
    with pytest.raises(UsageError, match=says):
        shamir.split(Secret(secret), threshold=threshold, holders=holders, randomness=_randomness(0))


def test_shares_are_uniform_in_every_bit():
    """512 first shares of one secret: each of the lower 256 bits is set about half of the time."""
    values = [int.from_bytes(_split(bytes(32), 2, 2, seed)[1], "big") for seed in range(512)]
    for bit in range(256):
        assert 170 < sum(value >> bit & 1 for value in values) < 342


def test_is_share():
    assert shamir.is_share((PRIME - 1).to_bytes(33, "big"))
    for bad in (PRIME.to_bytes(33, "big"), bytes(32), bytes(34), bytearray(33), None, 5):
        assert not shamir.is_share(bad)


# The short cut for the points 1 to m


@given(st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=150), st.integers(1, 20))
def test_values_are_those_of_the_powers(coefficients, m):
    expected = [sum(c * x**power for power, c in enumerate(coefficients)) % PRIME for x in range(1, m + 1)]
    assert polynomial.evaluate(coefficients, m) == expected


@given(st.data())
def test_small_points_agree_with_lagrange(data):
    m = data.draw(st.integers(1, 40))
    points = sorted(data.draw(st.sets(st.integers(1, m), min_size=1)))
    small = SmallPoints(m)
    scales = small.scales(points)
    for point, scale in zip(points, scales, strict=True):
        assert math.prod(point - other for other in points if other != point) * scale % PRIME == 1
        weight = math.prod(other * pow(other - point, -1, PRIME) for other in points if other != point) % PRIME
        assert small.weights_at_zero(points, scales)[points.index(point)] == weight


@given(st.data())
def test_the_dual_word_is_orthogonal_to_shares_and_to_nothing_else(data):
    m = data.draw(st.integers(2, 20))
    points = sorted(data.draw(st.sets(st.integers(1, m), min_size=2)))
    dimension = data.draw(st.integers(1, len(points) - 1))
    small, challenge = SmallPoints(m), data.draw(st.integers(m + 1, PRIME - 1))
    word = small.dual_word(points, small.scales(points), dimension, challenge)
    coefficients = data.draw(st.lists(st.integers(0, PRIME - 1), min_size=dimension, max_size=dimension))
    everywhere = polynomial.evaluate(coefficients, m)
    values = [everywhere[point - 1] for point in points]
    assert sum(map(int.__mul__, word, values)) % PRIME == 0
    values[data.draw(st.integers(0, len(points) - 1))] += data.draw(st.integers(1, PRIME - 1))
    assert sum(map(int.__mul__, word, values)) % PRIME != 0


def test_with_no_share_to_spare_there_is_nothing_to_check():
    small = SmallPoints(5)
    assert small.dual_word((1, 2, 5), small.scales((1, 2, 5)), 3, 7) == (0, 0, 0)


def test_one_rebuilder_serves_any_subsets_in_turn():
    """As on a sparse graph, where the holders that are left differ from owner to owner."""
    rebuilder = _rebuilder(3, 7)
    for number, points in enumerate([(1, 2, 3), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7), (1, 3, 5, 7), (1, 2, 3)]):
        secret = hashlib.sha256(b"%d" % number).digest()
        shares = _split(secret, 3, 7, number)
        found = rebuilder.rebuild(
            {point: shares[point] for point in points}, lambda s, secret=secret: s.reveal() == secret
        )
        assert found == Secret(secret)
        assert rebuilder.rebuild({**shares, 4: shares[5]}, lambda _: True) is None
