"""The Edwards form of X25519's curve, held against `cryptography`, and against the vectors' arithmetic at its edges."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from support import curve
from support.curve import CURVE_ORDER, CURVE_PRIME

from fedcore.secagg.crypto import edwards
from fedcore.secagg.crypto.edwards import BASE, IDENTITY

TOP = 2**255
"""The bit that X25519 ignores and Ed25519 takes for the sign of x."""


def _seed(number: int) -> bytes:
    return hashlib.sha256(b"edwards %d" % number).digest()


def _number(value: int) -> bytes:
    return value.to_bytes(32, "little")


@pytest.mark.parametrize("number", range(6))
def test_multiples_are_those_of_x25519_up_to_the_sign(number):
    private, peer = (X25519PrivateKey.from_private_bytes(_seed(i)) for i in (number, number + 100))
    public = peer.public_key().public_bytes_raw()
    scalar, own = edwards.scalar_and_point(_seed(number))
    point = edwards.lift(public)
    assert edwards.to_u(point) == public
    assert not edwards.is_odd(point)
    assert edwards.to_u(edwards.agree(scalar, point)) == private.exchange(X25519PublicKey.from_public_bytes(public))
    assert edwards.to_u(own) == private.public_key().public_bytes_raw()


@pytest.mark.parametrize("number", range(4))
def test_the_base_point_and_the_encoding_are_those_of_ed25519(number):
    public = Ed25519PrivateKey.from_private_bytes(_seed(number)).public_key().public_bytes_raw()
    scalar, point = edwards.scalar_and_point(hashlib.sha512(_seed(number)).digest()[:32])
    assert point == edwards.multiply(scalar, BASE) == public
    assert edwards.is_odd(point) is bool(public[31] >> 7)


@pytest.mark.parametrize("low", [0, 7, 255])
@pytest.mark.parametrize("high", [0, 64, 128, 255])
def test_a_private_key_is_clamped_as_x25519_clamps_it(low, high):
    raw = bytes([low, *_seed(1)[1:31], high])
    scalar, point = edwards.scalar_and_point(raw)
    clamped = int.from_bytes(raw, "little") % 2**254 // 8 * 8 + 2**254
    assert scalar == _number(clamped % CURVE_ORDER)
    assert point == curve.encoded(curve.times(clamped, curve.BASE))


def test_the_laws_of_a_group():
    one, two, three = (edwards.multiply(_number(k), BASE) for k in (5, 7, 12))
    assert edwards.subtract(three, one) == two
    assert edwards.subtract(one, one) == IDENTITY
    assert edwards.subtract(one, IDENTITY) == one
    assert edwards.subtract(IDENTITY, edwards.subtract(IDENTITY, one)) == one
    assert edwards.clear_cofactor(one) == edwards.multiply(_number(40), BASE)
    assert curve.encoded(curve.BASE) == BASE


def test_multiples_by_zero_and_of_the_identity_are_the_identity():
    """libsodium gives an error for both."""
    assert edwards.multiply(bytes(32), BASE) == IDENTITY
    assert edwards.multiply(_number(5), IDENTITY) == IDENTITY
    assert edwards.multiply(_number(CURVE_ORDER - 1), BASE) == edwards.subtract(IDENTITY, BASE)
    assert edwards.to_u(IDENTITY) == bytes(32)


def test_scalars_are_reduced_to_the_order_of_the_subgroup():
    for value in (0, 1, CURVE_ORDER - 1, CURVE_ORDER, CURVE_ORDER + 1, 2**256 - 1):
        assert edwards.reduce(_number(value)) == _number(value % CURVE_ORDER)
    wide = hashlib.sha512(b"wide").digest()
    one, two, three = (int.from_bytes(wide[i:], "little") % CURVE_ORDER for i in range(3))
    assert edwards.reduce(wide) == _number(one)
    assert edwards.multiply_add(*map(_number, (one, two, three))) == _number((one * two + three) % CURVE_ORDER)
    assert edwards.negate_scalar(_number(one)) == _number(CURVE_ORDER - one)
    assert edwards.negate_scalar(bytes(32)) == bytes(32)


def test_half_of_all_coordinates_are_on_the_twist():
    lifted = [edwards.lift(_seed(number)) is not None for number in range(64)]
    assert 16 < sum(lifted) < 48
    assert edwards.lift(_number(CURVE_PRIME - 1)) is None


def test_a_coordinate_is_read_as_x25519_reads_it():
    """The top bit does not count, and 9 + p is 9."""
    for raw in (9, 9 + TOP, 9 + CURVE_PRIME, 9 + CURVE_PRIME + TOP):
        assert edwards.lift(_number(raw)) == BASE


@pytest.mark.parametrize("order", [2, 4, 8])
def test_coordinates_of_small_order_are_lifted_and_agree_on_the_identity(order):
    raw = curve.to_u(curve.of_order(order))
    assert raw == bytes(32) if order == 2 else raw != bytes(32)
    point = edwards.lift(raw)
    assert point in map(curve.encoded, curve.SMALL)
    assert edwards.clear_cofactor(point) == edwards.agree(edwards.reduce(_seed(1)), point) == IDENTITY
    assert not edwards.is_in_subgroup(point)


@pytest.mark.parametrize("place", range(8))
def test_what_of_small_order_is_added_to_a_point_takes_it_out_of_the_subgroup_and_is_cleared(place):
    """libsodium before 1.0.20 of December 2025 took a point plus that of order two for one of the subgroup."""
    point = curve.times(int.from_bytes(_seed(2), "little"), curve.BASE)
    moved = curve.encoded(curve.added(point, curve.SMALL[place]))
    assert edwards.is_in_subgroup(moved) is (place == 0)
    assert edwards.is_in_subgroup(curve.encoded(curve.SMALL[place])) is (place == 0)
    assert edwards.clear_cofactor(moved) == curve.encoded(curve.times(8, point))
    scalar, own = edwards.scalar_and_point(_seed(3))
    assert edwards.agree(scalar, moved) == edwards.agree(scalar, curve.encoded(point))
    assert edwards.agree(scalar, BASE) == own


def test_what_no_point_is_encoded_as():
    """y of p and more, a minus before x = 0, y of no point: with other bytes for X a proof would have a second form."""
    nowhere = next(y for y in range(2, 50) if not curve.is_y_of_a_point(y))
    for bad in (CURVE_PRIME, CURVE_PRIME + 1, CURVE_PRIME + 1 + TOP, 1 + TOP, CURVE_PRIME - 1 + TOP, nowhere):
        assert not edwards.is_in_subgroup(_number(bad))
    assert edwards.is_in_subgroup(IDENTITY)
