"""Shamir sharing over GF(2^256 + 297): any t shares rebuild, fewer tell nothing, wrong ones are found."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import UnmaskFailed, UsageError
from fedcore.secagg import Secret, polynomial, shamir
from fedcore.secagg.polynomial import PRIME
from fedcore.secagg.shamir import Rebuilder

SECRETS = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32]))


def _randomness(seed: object):
    counter = itertools.count()
    return lambda size: hashlib.shake_256(f"{seed}/{next(counter)}".encode()).digest(size)


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
    holders = draw(st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=9, unique=True))
    threshold = draw(st.integers(1, len(holders)))
    secret = draw(SECRETS)
    shares = shamir.split(
        Secret(secret), threshold=threshold, holders=holders, randomness=_randomness(draw(st.integers()))
    )
    return secret, threshold, shares


@settings(max_examples=80, deadline=None)
@given(_sharings(), st.randoms(use_true_random=False))
def test_any_subset_of_t_shares_rebuilds(sharing, random):
    secret, threshold, shares = sharing
    chosen = random.sample(sorted(shares), random.randint(threshold, len(shares)))
    rebuilder = Rebuilder(threshold=threshold, randomness=_randomness("server"))
    found = rebuilder.rebuild({v: shares[v] for v in chosen}, lambda s: s.reveal() == secret)
    assert found.secret.reveal() == secret
    assert found.wrong == frozenset()


@settings(max_examples=60, deadline=None)
@given(_sharings(), SECRETS)
def test_fewer_than_t_shares_fit_every_secret(sharing, other):
    """Perfect secrecy: t - 1 shares and any secret lie on one polynomial of degree < t."""
    _, threshold, shares = sharing
    points = [0, *sorted(shares)[: threshold - 1]]
    values = [int.from_bytes(other, "big"), *(int.from_bytes(shares[v], "big") for v in points[1:])]
    assert len(polynomial.interpolate(points, values)) <= threshold


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_errors_up_to_the_decoding_radius_are_corrected_and_named(data):
    n = data.draw(st.integers(3, 14))
    threshold = data.draw(st.integers(1, n - 2))
    holders = list(range(1, n + 1))
    secret = data.draw(SECRETS)
    shares = shamir.split(Secret(secret), threshold=threshold, holders=holders, randomness=_randomness(n))
    liars = data.draw(st.sets(st.sampled_from(holders), min_size=1, max_size=(n - threshold) // 2))
    for liar in liars:
        error = data.draw(st.integers(1, PRIME - 1))
        value = (int.from_bytes(shares[liar], "big") + error) % PRIME
        shares[liar] = value.to_bytes(33, "big")
    rebuilder = Rebuilder(threshold=threshold, randomness=_randomness("server"))
    found = rebuilder.rebuild(shares, lambda s: s.reveal() == secret)
    assert found.secret.reveal() == secret
    assert found.wrong == liars


@pytest.mark.parametrize(("n", "threshold", "liars"), [(6, 3, 3), (9, 5, 4), (12, 9, 3), (40, 36, 3)])
def test_beyond_the_radius_subsets_are_searched(n, threshold, liars):
    secret = hashlib.sha256(b"secret").digest()
    shares = shamir.split(
        Secret(secret), threshold=threshold, holders=range(1, n + 1), randomness=_randomness("dealer")
    )
    for liar in range(1, liars + 1):
        shares[liar] = hashlib.shake_256(b"%d" % liar).digest(32).rjust(33, b"\0")
    rebuilder = Rebuilder(threshold=threshold, randomness=_randomness("server"))
    if n == 40:  # more than SUBSET_LIMIT subsets, of which about one in fifty thousand is good: given up in time
        with pytest.raises(UnmaskFailed):
            rebuilder.rebuild(shares, lambda s: s.reveal() == secret)
        return
    found = rebuilder.rebuild(shares, lambda s: s.reveal() == secret)
    assert found.secret.reveal() == secret
    assert found.wrong == set(range(1, liars + 1))


def test_random_subsets_are_searched_where_there_are_too_many():
    """12 choose 6 are 924 subsets, 14 choose 7 are 3432: the second goes through the random search."""
    secret = hashlib.sha256(b"secret").digest()
    shares = shamir.split(Secret(secret), threshold=7, holders=range(1, 15), randomness=_randomness("dealer"))
    for liar in (1, 5, 9, 13):
        shares[liar] = hashlib.shake_256(b"%d" % liar).digest(32).rjust(33, b"\0")
    rebuilder = Rebuilder(threshold=7, randomness=_randomness("server"))
    assert rebuilder.rebuild(shares, lambda s: s.reveal() == secret).wrong == {1, 5, 9, 13}


def test_an_ambiguous_hint_names_nobody():
    """Holders 3 and 4 make up a line of their own through the right secret: two against two."""
    secret = hashlib.sha256(b"secret").digest()
    one, two = (
        shamir.split(Secret(secret), threshold=2, holders=[1, 2, 3, 4], randomness=_randomness(dealer))
        for dealer in ("honest", "made up")
    )
    rebuilder = Rebuilder(threshold=2, randomness=_randomness("server"))
    found = rebuilder.rebuild({1: one[1], 2: one[2], 3: two[3], 4: two[4]}, lambda s: s.reveal() == secret)
    assert found.secret.reveal() == secret
    assert found.wrong == frozenset()


def test_consistent_shares_of_another_secret_are_lost_at_once():
    shares = shamir.split(Secret(bytes(32)), threshold=3, holders=range(1, 8), randomness=_randomness("dealer"))
    tried = []
    with pytest.raises(UnmaskFailed, match="committed"):
        Rebuilder(threshold=3, randomness=_randomness("server")).rebuild(shares, lambda s: bool(tried.append(s)))
    assert len(tried) == 1


def test_a_secret_above_32_bytes_is_never_offered():
    value = PRIME - 1
    shares = {point: value.to_bytes(33, "big") for point in (1, 2, 3)}
    with pytest.raises(UnmaskFailed):
        Rebuilder(threshold=2, randomness=_randomness("server")).rebuild(shares, lambda _: True)


def test_too_few_shares():
    with pytest.raises(UnmaskFailed, match="2 shares of a secret came back, 3 are needed"):
        Rebuilder(threshold=3, randomness=_randomness(0)).rebuild({1: bytes(33), 2: bytes(33)}, lambda _: True)


def test_weights_are_computed_once_for_equal_points():
    draws = []
    randomness = _randomness("server")
    rebuilder = Rebuilder(threshold=2, randomness=lambda size: draws.append(size) or randomness(size))
    for number in range(5):
        secret = hashlib.sha256(b"%d" % number).digest()
        shares = shamir.split(Secret(secret), threshold=2, holders=[1, 2, 3], randomness=_randomness(number))
        assert rebuilder.rebuild(shares, lambda s, secret=secret: s.reveal() == secret)
    assert len(draws) == 1


@pytest.mark.parametrize(
    ("secret", "threshold", "holders", "says"),
    [
        (bytes(31), 2, [1, 2, 3], "32 bytes"),
        (bytes(32), 0, [1, 2, 3], "threshold"),
        (bytes(32), 4, [1, 2, 3], "threshold"),
        (bytes(32), 2, [1, 1, 3], "distinct"),
        (bytes(32), 2, [0, 1, 2], "distinct positive"),
        (bytes(32), 2, [1, PRIME], "distinct positive"),
    ],
)
def test_a_sharing_that_cannot_be(secret, threshold, holders, says):
    with pytest.raises(UsageError, match=says):
        shamir.split(Secret(secret), threshold=threshold, holders=holders, randomness=_randomness(0))


def test_shares_are_uniform_in_every_bit():
    """512 first shares of one secret: each of the lower 256 bits is set about half of the time."""
    values = [
        int.from_bytes(
            shamir.split(Secret(bytes(32)), threshold=2, holders=[1, 2], randomness=_randomness(i))[1], "big"
        )
        for i in range(512)
    ]
    for bit in range(256):
        assert 170 < sum(value >> bit & 1 for value in values) < 342


def test_is_share():
    assert shamir.is_share((PRIME - 1).to_bytes(33, "big"))
    for bad in (PRIME.to_bytes(33, "big"), bytes(32), bytes(34), bytearray(33), None, 5):
        assert not shamir.is_share(bad)
