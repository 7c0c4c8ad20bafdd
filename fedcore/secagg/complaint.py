"""A receiver's proof that what a dealer sealed for it is garbage, which anybody can check without the receiver's key.

A receiver R that cannot open what the dealer D sealed discloses the secret that X25519 gives for the two, as a point
X, and proves (Chaum and Pedersen 1992, made non-interactive after Fiat and Shamir 1986) that it is right: the discrete
logarithm of R's public key to the base point is that of X to D's public key. In the hybrid it adds the seed of its
ML-KEM pair. With these anybody derives the sealing key and opens the text: if that is no pair of shares as committed,
D is at fault; if it is, R is.

Nothing is lost, since R complains only of a D that has proved to have the private halves of its keys
(`fedcore.secagg.crypto.possession`). So X opens what R and D sealed for each other and nothing else, and an honest R
complains only of what D has signed and an honest D would not have: D is malicious, and knew all of it. A false
complainant reveals secrets of its own. The ML-KEM seed costs R the hedge against quantum computers for what was
sealed under that one key, in an attempt that R leaves.

The points: a public key is a u-coordinate, which fits two points, P and -P. Both sides `lift` to the same one; whether
R's private key or its negative belongs to that is R's to know, and the sign of X follows. D may have added a point of
small order to its key, so the equations are those of eight times each point, and X must lie in the subgroup of the base
point, as every X25519 result on the curve does. A key on the curve's twist fits no point: only a malicious client makes
one.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from enum import StrEnum

from fedcore.errors import ProtocolViolation
from fedcore.secagg.checks import Check, Fault
from fedcore.secagg.crypto import edwards, schedule
from fedcore.secagg.crypto.agreement import MLKEM_SEED_BYTES, Agreement, KeyPair
from fedcore.secagg.crypto.domain import HASH_BYTES, Usage, tagged_hash
from fedcore.secagg.crypto.keys import KEY_BYTES, Randomness, draw
from fedcore.secagg.dealing import fault_in, split_parcel
from fedcore.secagg.messages import Advertisement
from fedcore.secagg.parameters import MAX_ID

PROOF_BYTES = HASH_BYTES + edwards.SCALAR_BYTES
# 256 bits more than the order has: the remainder is uniform for all that anybody can tell.
_NONCE_BYTES = 64


class ComplaintSubject(StrEnum):
    """What is complained of: the parcel of shares, sealed under c, or the pair secret, sealed under s."""

    SHARES = "shares"
    PAIR_SECRET = "pair-secret"  # noqa: S105 - the name of a part

    @property
    def usage(self) -> Usage:
        """What its sealing key is derived for."""
        return Usage.SHARE_SEAL if self is ComplaintSubject.SHARES else Usage.PAIR_SEAL

    def key_of(self, member: Advertisement) -> bytes:
        """The public key under which it is sealed, and of the one who sealed it."""
        return member.c_public if self is ComplaintSubject.SHARES else member.s_public


@dataclass(frozen=True, slots=True)
class Complaint:
    """R1, client to server: `client_id` says that what `accused` sealed for it is not what it should be.

    `shared` is the point X (32 bytes, encoded as in RFC 8032), `proof` challenge and response (64 bytes); both are
    zeros if the accused's key lies off the curve, which is proof enough. `mlkem_seed` has 64 bytes in the hybrid.
    """

    client_id: int
    accused: int
    part: ComplaintSubject
    shared: bytes = field(repr=False)
    proof: bytes = field(repr=False)
    mlkem_seed: bytes = field(repr=False)

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        for client_id in (self.client_id, self.accused):
            if not isinstance(client_id, int) or isinstance(client_id, bool) or not 1 <= client_id <= MAX_ID:
                raise ProtocolViolation(Check.MALFORMED, "a complaint names two clients")
        if not isinstance(self.part, ComplaintSubject):
            raise ProtocolViolation(Check.MALFORMED, "a complaint is about shares or a pair secret")
        sizes = ((self.shared, {KEY_BYTES}), (self.proof, {PROOF_BYTES}), (self.mlkem_seed, {0, MLKEM_SEED_BYTES}))
        for value, allowed in sizes:
            if not isinstance(value, bytes) or len(value) not in allowed:
                raise ProtocolViolation(Check.MALFORMED, "a part of the complaint has another size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a complaint is judged on, all of it public: the keys of both, and what the accused signed to have sealed.

    `pair_secret` is None if the accused chose none for the complainant. That the accused's signature covers these is
    for the caller to see to (`dealing`).
    """

    transcript: schedule.Transcript
    agreement: Agreement
    complainant: Advertisement
    accused: Advertisement
    parcel: bytes
    pair_secret: bytes | None

    def sealed(self, part: ComplaintSubject) -> bytes | None:
        """What was sealed."""
        return split_parcel(self.parcel)[1] if part is ComplaintSubject.SHARES else self.pair_secret


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is at fault, and of what."""

    client_id: int
    fault: Fault


def complain(case: Case, part: ComplaintSubject, pair: KeyPair, randomness: Randomness) -> Complaint:
    """The complaint about `part`; `pair` is the complainant's under which it was sealed."""
    private, seed = pair.disclose()
    peer = edwards.lift(part.key_of(case.accused)[:KEY_BYTES])
    ids = case.complainant.client_id, case.accused.client_id
    if peer is None:
        return Complaint(*ids, part, bytes(KEY_BYTES), bytes(PROOF_BYTES), seed.reveal())
    shared, proof = _prove(case, part, private.reveal(), peer, randomness)
    return Complaint(*ids, part, shared, proof, seed.reveal())


def judge(complaint: Complaint, case: Case) -> Verdict:
    """Who is at fault: always one of the two."""
    part, accused = complaint.part, case.accused.client_id
    false = Verdict(case.complainant.client_id, Fault.FALSE_COMPLAINT)
    sealed = case.sealed(part)
    if sealed is None:
        return false
    peer = edwards.lift(part.key_of(case.accused)[:KEY_BYTES])
    if peer is None:
        return Verdict(accused, Fault.KEY_OFF_CURVE)
    agreed = _proven(complaint, case, peer)
    if agreed is None:
        return false
    ciphertext = sealed[: case.agreement.ciphertext_bytes]
    secret = case.agreement.disclosed(part.key_of(case.complainant), agreed, complaint.mlkem_seed, ciphertext)
    if secret is None:
        return false
    ends = {"sender": accused, "receiver": case.complainant.client_id}
    text = schedule.open_with(part.usage, case.transcript, case.agreement, secret, **ends, sealed=sealed)
    fault = _fault(case, part, text)
    return false if fault is None else Verdict(accused, fault)


def _fault(case: Case, part: ComplaintSubject, text: bytes | None) -> Fault | None:
    """What the accused did wrong, going by the text that it sealed; any 32 bytes are a pair secret."""
    if text is None:
        return Fault.SEALED_GARBAGE
    if part is ComplaintSubject.PAIR_SECRET:
        return None
    commitments, _ = split_parcel(case.parcel)
    owner, holder = case.accused.client_id, case.complainant.client_id
    wrong = fault_in(text, commitments, case.transcript.context, owner, holder)
    return None if wrong is None else Fault.INCONSISTENT_DEALING


def _prove(
    case: Case, part: ComplaintSubject, private: bytes, peer: bytes, randomness: Randomness
) -> tuple[bytes, bytes]:
    """X and the proof; `private` is the complainant's X25519 key."""
    scalar = edwards.scalar_of(private)
    shared = edwards.agree(scalar, peer)
    nonce = edwards.reduce(draw(randomness, _NONCE_BYTES))
    bases = edwards.clear_cofactor(edwards.BASE), edwards.clear_cofactor(peer)
    challenge = _challenge(case, part, shared, [edwards.multiply(nonce, base) for base in bases])
    return shared, challenge + edwards.multiply_add(edwards.reduce(challenge), scalar, nonce)


def _proven(complaint: Complaint, case: Case, peer: bytes) -> bytes | None:
    """X25519's secret of the two, 32 bytes, if the proof holds for it."""
    own, agreed = edwards.lift(complaint.part.key_of(case.complainant)[:KEY_BYTES]), complaint.shared
    challenge, response = complaint.proof[:HASH_BYTES], complaint.proof[HASH_BYTES:]
    if own is None or not edwards.is_in_subgroup(agreed) or edwards.reduce(response) != response:
        return None
    factor = edwards.reduce(challenge)
    commitments = [
        edwards.subtract(
            edwards.multiply(response, edwards.clear_cofactor(base)),
            edwards.multiply(factor, edwards.clear_cofactor(image)),
        )
        for base, image in ((edwards.BASE, own), (peer, agreed))
    ]
    expected = _challenge(case, complaint.part, complaint.shared, commitments)
    return edwards.to_u(agreed) if hmac.compare_digest(challenge, expected) else None


def _challenge(case: Case, part: ComplaintSubject, shared: bytes, commitments: list[bytes]) -> bytes:
    """H("complaint", ctx, L1, complainant, accused, part, both public keys, X, the nonce times both bases)."""
    return tagged_hash(
        Usage.COMPLAINT,
        case.transcript.context,
        case.transcript.cohort,
        case.complainant.client_id,
        case.accused.client_id,
        part.value,
        part.key_of(case.complainant),
        part.key_of(case.accused),
        shared,
        *commitments,
    )
