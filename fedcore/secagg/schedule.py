"""The key schedule: every commitment, sealing key and mask seed of a round, and every statement that is signed.

One place for what PROTOCOL.md derives, used by client and server alike, so that the two cannot drift apart.
`Transcript` is what all of it is bound to: ctx (round, parameters, model) and L1 (who advertised which keys).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from fedcore.secagg.domain import Usage, derive, pack_ids, statement, tagged_hash
from fedcore.secagg.keys import KeyPair, Secret, seal, unseal
from fedcore.secagg.masking import MaskTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What a client has seen of the round so far: `context` is ctx, `cohort` is L1, 32 bytes each."""

    context: bytes
    cohort: bytes


def advertisement_statement(context: bytes, client_id: int, c_public: bytes, s_public: bytes) -> bytes:
    """What a client signs in R0: ("adv", ctx, id, c, s)."""
    return statement(Usage.ADVERTISEMENT, context, client_id, c_public, s_public)


def consistency_statement(transcript: Transcript, sharers: Iterable[int], survivors: Iterable[int]) -> bytes:
    """What a client signs in R3: (ctx, L1, U2, U3)."""
    return statement(
        Usage.CONSISTENCY,
        transcript.context,
        transcript.cohort,
        pack_ids(sharers),
        pack_ids(survivors),
    )


def commitment(context: bytes, client_id: int, self_secret: Secret) -> bytes:
    """H("bcom", ctx, id, b), 32 bytes. b has 256 bits of entropy, so the hash hides it."""
    return tagged_hash(Usage.COMMITMENT, context, client_id, self_secret.reveal())


def commits_to(expected: bytes, context: bytes, client_id: int, self_secret: Secret) -> bool:
    """Whether `expected` is the commitment to this b."""
    return hmac.compare_digest(expected, commitment(context, client_id, self_secret))


def seal_shares(
    transcript: Transcript,
    pair: KeyPair,
    peer_public: bytes,
    *,
    sender: int,
    receiver: int,
    text: bytes,
) -> bytes:
    """Seal one pair of shares from `sender` to `receiver`; 16 bytes longer than `text`."""
    key = _sealing_key(transcript, pair.agree(peer_public), sender, receiver)
    return seal(key, text, _sealing_context(transcript, sender, receiver))


def unseal_shares(
    transcript: Transcript,
    pair: KeyPair,
    peer_public: bytes,
    *,
    sender: int,
    receiver: int,
    sealed: bytes,
) -> bytes | None:
    """The inverse of `seal_shares`; None where round, cohort, sender or receiver is another."""
    key = _sealing_key(transcript, pair.agree(peer_public), sender, receiver)
    return unseal(key, sealed, _sealing_context(transcript, sender, receiver))


def self_mask(transcript: Transcript, self_secret: Secret) -> MaskTerm:
    """The mask that a client adds alone: seed HKDF(b, ctx, "self", L1)."""
    seed = derive(self_secret.reveal(), transcript.context, Usage.SELF_MASK, transcript.cohort)
    return MaskTerm(sign=1, seed=Secret(seed))


def pair_mask(transcript: Transcript, pair: KeyPair, peer_public: bytes, *, owner: int, peer: int) -> MaskTerm:
    """The mask that `owner` adds for `peer`, plus where owner < peer; the peer adds the same with the other sign.

    Seed: HKDF(X25519(s), ctx, "pair", L1, min, max).
    """
    seed = derive(
        pair.agree(peer_public).reveal(),
        transcript.context,
        Usage.PAIR_MASK,
        transcript.cohort,
        min(owner, peer),
        max(owner, peer),
    )
    return MaskTerm(sign=1 if owner < peer else -1, seed=Secret(seed))


def _sealing_key(transcript: Transcript, agreed: Secret, sender: int, receiver: int) -> bytes:
    return derive(agreed.reveal(), transcript.context, Usage.SHARE_SEAL, transcript.cohort, sender, receiver)


def _sealing_context(transcript: Transcript, sender: int, receiver: int) -> bytes:
    return statement(Usage.SHARE_SEAL, transcript.context, transcript.cohort, sender, receiver)
