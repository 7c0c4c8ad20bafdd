"""The Edwards form of X25519's curve, held against X25519 and Ed25519 as `cryptography` has them."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedcore.secagg import edwards
from fedcore.secagg.edwards import BASE, IDENTITY, ORDER, PRIME


def _seed(number: int) -> bytes:
    return hashlib.sha256(b"edwards %d" % number).digest()


def _clamped(raw: bytes) -> int:
    return int.from_bytes(raw, "little") % 2**254 // 8 * 8 + 2**254


@pytest.mark.parametrize("number", range(6))
def test_multiples_are_those_of_x25519_up_to_the_sign(number):
    private, peer = (X25519PrivateKey.from_private_bytes(_seed(i)) for i in (number, number + 100))
    scalar, public = _clamped(_seed(number)), peer.public_key().public_bytes_raw()
    point = edwards.lift(public)
    assert edwards.to_u(point) == public
    assert not edwards.is_odd(point)
    assert edwards.to_u(edwards.multiply(scalar, point)) == private.exchange(X25519PublicKey.from_public_bytes(public))
    assert edwards.to_u(edwards.multiply(scalar, BASE)) == private.public_key().public_bytes_raw()


@pytest.mark.parametrize("number", range(4))
def test_the_base_point_and_the_encoding_are_those_of_ed25519(number):
    public = Ed25519PrivateKey.from_private_bytes(_seed(number)).public_key().public_bytes_raw()
    scalar = _clamped(hashlib.sha512(_seed(number)).digest()[:32])
    point = edwards.multiply(scalar, BASE)
    assert edwards.encode(point) == public
    assert edwards.encode(edwards.decode(public)) == public
    assert edwards.is_odd(point) is bool(public[31] >> 7)


def test_the_laws_of_a_group():
    one, two, three = (edwards.multiply(k, BASE) for k in (5, 7, 12))
    assert edwards.encode(edwards.add(one, two)) == edwards.encode(edwards.add(two, one)) == edwards.encode(three)
    assert edwards.is_identity(edwards.add(one, edwards.negate(one)))
    assert edwards.encode(edwards.add(one, IDENTITY)) == edwards.encode(one)
    assert edwards.is_identity(edwards.multiply(ORDER, BASE))
    assert edwards.is_identity(edwards.multiply(0, BASE))
    assert not edwards.is_identity(BASE)
    assert not edwards.is_identity(edwards.decode((PRIME - 1).to_bytes(32, "little")))  # order two, and x = 0 as well


def test_half_of_all_coordinates_are_on_the_twist():
    lifted = [edwards.lift(_seed(number)) is not None for number in range(64)]
    assert 16 < sum(lifted) < 48
    assert edwards.lift((PRIME - 1).to_bytes(32, "little")) is None


def test_a_coordinate_is_read_as_x25519_reads_it():
    """The top bit does not count, and 9 + p is 9."""
    nine = edwards.encode(BASE)
    for raw in (9, 9 + 2**255, 9 + PRIME, 9 + PRIME + 2**255):
        assert edwards.encode(edwards.lift(raw.to_bytes(32, "little"))) == nine


def test_what_no_point_is_encoded_as():
    too_large, minus_zero = PRIME, 1 + 2**255
    nowhere = next(y for y in range(2, 50) if edwards.decode(y.to_bytes(32, "little")) is None)
    for bad in (too_large, too_large + 1, minus_zero, nowhere):
        assert edwards.decode(bad.to_bytes(32, "little")) is None
    assert edwards.is_identity(edwards.decode((1).to_bytes(32, "little")))
    assert edwards.to_u(IDENTITY) == bytes(32)
