"""Proofs of possession: only who has the private half of a key can make one, for its own exchange and id."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.secagg import Agreement
from fedcore.secagg.crypto import edwards
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.keys import Secret
from fedcore.secagg.crypto.possession import PROOF_BYTES, PairName, holds, prove

CONTEXT = b"x" * 32


def pair(number: int, agreement: Agreement = Agreement.X25519) -> KeyPair:
    return KeyPair.from_root(agreement, Secret(hashlib.sha256(b"%d" % number).digest()))


@pytest.mark.parametrize("agreement", list(Agreement))
@pytest.mark.parametrize("name", list(PairName))
def test_whoever_has_the_private_half_proves_it(agreement: Agreement, name: PairName) -> None:
    for number in range(8):  # of both signs
        own = pair(number, agreement)
        proof = prove(own, CONTEXT, 3, name)
        assert len(proof) == PROOF_BYTES
        assert holds(own.public, proof, CONTEXT, 3, name)
        assert prove(own, CONTEXT, 3, name) == proof


def test_a_proof_is_for_one_exchange_one_client_and_one_key() -> None:
    own, other = pair(1), pair(2)
    proof = prove(own, CONTEXT, 3, PairName.SEAL)
    assert not holds(own.public, proof, b"y" * 32, 3, PairName.SEAL)
    assert not holds(own.public, proof, CONTEXT, 4, PairName.SEAL)
    assert not holds(own.public, proof, CONTEXT, 3, PairName.MASK)
    assert not holds(other.public, proof, CONTEXT, 3, PairName.SEAL)


@given(position=st.integers(0, PROOF_BYTES - 1), bit=st.integers(0, 7))
def test_no_bit_of_it_can_be_changed(position: int, bit: int) -> None:
    own = pair(1)
    proof = bytearray(prove(own, CONTEXT, 3, PairName.SEAL))
    proof[position] ^= 1 << bit
    assert not holds(own.public, bytes(proof), CONTEXT, 3, PairName.SEAL)


@pytest.mark.parametrize("size", [0, PROOF_BYTES - 1, PROOF_BYTES + 1])
def test_other_sizes_are_no_proof(size: int) -> None:
    own = pair(1)
    assert not holds(
        own.public, prove(own, CONTEXT, 3, PairName.SEAL).ljust(size, b"\0")[:size], CONTEXT, 3, PairName.SEAL
    )


def test_a_multiple_of_anothers_key_and_one_of_small_order_more_cannot_be_proved() -> None:
    """What an attacker has is the factor; with it the victim's own proof becomes none for the multiple."""
    victim, factor = pair(1), edwards.reduce(hashlib.sha512(b"factor").digest())
    point = edwards.lift(victim.public)
    assert point is not None
    multiple = edwards.to_u(edwards.multiply(factor, edwards.clear_cofactor(point)))
    proof = prove(victim, CONTEXT, 1, PairName.SEAL)
    challenge, response = proof[:32], proof[32:]
    scaled = challenge + edwards.multiply_add(factor, response, bytes(32))
    for public in (multiple, victim.public):
        for one in (proof, scaled):
            assert not holds(public, one, CONTEXT, 2, PairName.SEAL)


def test_a_key_on_the_twist_needs_none() -> None:
    twisted = next(u for u in (n.to_bytes(32, "little") for n in range(2, 50)) if edwards.lift(u) is None)
    assert holds(twisted, bytes(PROOF_BYTES), CONTEXT, 3, PairName.SEAL)
