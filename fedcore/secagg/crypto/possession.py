"""A proof that a client has the private half of a key that it advertised (Schnorr 1991, after Fiat and Shamir).

X25519 needs none: who lacks the private half agrees on nothing. A complaint does, since it discloses what the
complainant agrees on with the accused (`fedcore.secagg.complaint`): were the accused's key another client's, or a
multiple of it, that would be what the complainant and that client agree on.
"""

from __future__ import annotations

import hmac
from enum import StrEnum

from fedcore.secagg.crypto import edwards
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.domain import HASH_BYTES, Usage, derive, tagged_hash
from fedcore.secagg.crypto.keys import KEY_BYTES

PROOF_BYTES = HASH_BYTES + edwards.SCALAR_BYTES


class PairName(StrEnum):
    """Which of a client's two pairs it is."""

    SEAL = "c"
    MASK = "s"


def prove(pair: KeyPair, context: bytes, client_id: int, name: PairName) -> bytes:
    """Challenge and response, 64 bytes, the same whenever it is made.

    Args:
        pair: the client's.
        context: ctx, 32 bytes.
        client_id: whose pair it is.
        name: which of the two.
    """
    scalar = edwards.scalar_of(pair.disclose()[0].reveal())
    root = pair.root.reveal()
    drawn = b"".join(derive(root, context, Usage.POSSESSION_NONCE, client_id, name.value, half) for half in (0, 1))
    nonce = edwards.reduce(drawn)
    commitment = edwards.multiply(nonce, edwards.clear_cofactor(edwards.BASE))
    challenge = _challenge(pair.public, context, client_id, name, commitment)
    return challenge + edwards.multiply_add(edwards.reduce(challenge), scalar, nonce)


def holds(public: bytes, proof: bytes, context: bytes, client_id: int, name: PairName) -> bool:
    """Whether a proof is right, or needless: a key on the curve's twist is proof enough of a cheat by itself."""
    point = edwards.lift(public[:KEY_BYTES])
    if point is None:
        return True
    challenge, response = proof[:HASH_BYTES], proof[HASH_BYTES:]
    if len(proof) != PROOF_BYTES or edwards.reduce(response) != response:
        return False
    commitment = edwards.subtract(
        edwards.multiply(response, edwards.clear_cofactor(edwards.BASE)),
        edwards.multiply(edwards.reduce(challenge), edwards.clear_cofactor(point)),
    )
    return hmac.compare_digest(challenge, _challenge(public, context, client_id, name, commitment))


def _challenge(public: bytes, context: bytes, client_id: int, name: PairName, commitment: bytes) -> bytes:
    """H("possession", ctx, id, pair, X25519 key, the nonce times eight times the base)."""
    return tagged_hash(Usage.POSSESSION, context, client_id, name.value, public[:KEY_BYTES], commitment)
