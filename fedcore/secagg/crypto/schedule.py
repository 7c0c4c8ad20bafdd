"""The key schedule: every commitment, sealing key and mask seed of a round, and every statement that is signed.

One place for what docs/protocol.md derives, used by client and server alike, so that the two cannot drift apart.
`Transcript` is what all of it is bound to: ctx (round, parameters, model) and L1 (who advertised which keys).
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from fedcore.secagg.crypto.agreement import Agreement, KeyPair
from fedcore.secagg.crypto.domain import Usage, derive, pack_ids, statement, tagged_hash
from fedcore.secagg.crypto.keys import Secret, seal, unseal
from fedcore.secagg.crypto.masking import MaskTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What a client has seen of the round so far: `context` is ctx, `cohort` is L1, 32 bytes each."""

    context: bytes
    cohort: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the clients at the end of a round have agreed on: ctx and L1, 32 bytes each, U2 and U3 in ascending order.

    With norm proofs also the coin, 32 bytes, else empty. R3 signs it, so a quorum of those signatures shows to anybody
    what the round was.
    """

    context: bytes
    cohort: bytes
    sharers: tuple[int, ...]
    survivors: tuple[int, ...]
    coin: bytes = b""

    def statement(self) -> bytes:
        """What a client signs in R3."""
        transcript = Transcript(context=self.context, cohort=self.cohort)
        return consistency_statement(transcript, self.sharers, self.survivors, self.coin)

    def proof_context(self, client_id: int) -> bytes:
        """What a client's norm proof is bound to, in addition to the coin: 32 bytes."""
        return tagged_hash(Usage.NORM_CONTEXT, self.context, self.cohort, client_id)


def advertisement_statement(context: bytes, client_id: int, c_public: bytes, s_public: bytes) -> bytes:
    """What a client signs in R0: ("adv", ctx, id, c, s)."""
    return statement(Usage.ADVERTISEMENT, context, client_id, c_public, s_public)


def cohort_hash(context: bytes, ids: Sequence[int], root: bytes) -> bytes:
    """L1: who advertised, and the root of the tree over what they advertised; 32 bytes."""
    return tagged_hash(Usage.COHORT, context, pack_ids(ids), root)


def ring_seed(transcript: Transcript) -> bytes:
    """The seed of the order on the ring, 32 bytes: known only when all keys are."""
    return tagged_hash(Usage.ORDER, transcript.context, transcript.cohort)


def consistency_statement(
    transcript: Transcript, sharers: Sequence[int], survivors: Sequence[int], coin: bytes = b""
) -> bytes:
    """What a client signs in R3: (ctx, L1, H(U2, U3)), and the coin if there is one.

    The sets are hashed once, not once a signature.
    """
    sets = tagged_hash(Usage.CLIENT_SETS, pack_ids(sharers), pack_ids(survivors))
    return statement(Usage.CONSISTENCY, transcript.context, transcript.cohort, sets, *([coin] if coin else []))


def coin_of(transcript: Transcript, survivors: Sequence[int], inputs: Sequence[bytes]) -> bytes:
    """The coin of a round with norm proofs, 32 bytes: no client knows it before its own vector is here.

    Each honest client's input has a commitment to uniform pads, which the server shows nobody.

    Args:
        transcript: of the round.
        survivors: U3.
        inputs: of each of them the digest of its vector and commitment.
    """
    return tagged_hash(Usage.COIN, transcript.context, transcript.cohort, pack_ids(survivors), b"".join(inputs))


def commitment(context: bytes, client_id: int, self_secret: Secret) -> bytes:
    """H("bcom", ctx, id, b), 32 bytes. b has 256 bits of entropy, so the hash hides it."""
    return tagged_hash(Usage.COMMITMENT, context, client_id, self_secret.reveal())


def commits_to(expected: bytes, context: bytes, client_id: int, self_secret: Secret) -> bool:
    """Whether `expected` is the commitment to this b."""
    return hmac.compare_digest(expected, commitment(context, client_id, self_secret))


def seal_shares(
    transcript: Transcript, pair: KeyPair, peer_public: bytes, *, sender: int, receiver: int, text: bytes
) -> bytes:
    """Seal one pair of shares under the receiver's c: the agreement's ciphertext, then `text` and 16 bytes more."""
    return _seal(Usage.SHARE_SEAL, transcript, pair, peer_public, sender=sender, receiver=receiver, text=text)


def open_shares(
    transcript: Transcript, pair: KeyPair, peer_public: bytes, *, sender: int, receiver: int, sealed: bytes
) -> bytes | None:
    """The inverse of `seal_shares`; None if round, cohort, sender or receiver is another."""
    return _open(Usage.SHARE_SEAL, transcript, pair, peer_public, sender=sender, receiver=receiver, sealed=sealed)


def pair_secret(transcript: Transcript, root: Secret, *, chooser: int, peer: int) -> Secret:
    """What `chooser` chooses for its masks with `peer`: HKDF(r, ctx, "pair-secret", L1, chooser, peer).

    It follows from the mask root r, so rebuilding r gives it back although encapsulation cannot be repeated.
    """
    seed = derive(root.reveal(), transcript.context, Usage.PAIR_SECRET, transcript.cohort, chooser, peer)
    return Secret(seed)


def seal_pair_secret(
    transcript: Transcript, pair: KeyPair, peer_public: bytes, *, sender: int, receiver: int, secret: Secret
) -> bytes:
    """Seal a pair secret under the receiver's s, so that anybody who rebuilds the receiver's root can open it too."""
    text = secret.reveal()
    return _seal(Usage.PAIR_SEAL, transcript, pair, peer_public, sender=sender, receiver=receiver, text=text)


def open_pair_secret(
    transcript: Transcript, pair: KeyPair, peer_public: bytes, *, sender: int, receiver: int, sealed: bytes
) -> Secret | None:
    """The inverse of `seal_pair_secret`; None if round, cohort, sender or receiver is another."""
    text = _open(Usage.PAIR_SEAL, transcript, pair, peer_public, sender=sender, receiver=receiver, sealed=sealed)
    return None if text is None else Secret(text)


def open_with(
    usage: Usage,
    transcript: Transcript,
    agreement: Agreement,
    agreed: Secret,
    *,
    sender: int,
    receiver: int,
    sealed: bytes,
) -> bytes | None:
    """What was sealed, with the agreed secret itself; None if it does not open. `usage`: one of the two seals."""
    ciphertext, rest = sealed[: agreement.ciphertext_bytes], sealed[agreement.ciphertext_bytes :]
    key = _sealing_key(usage, transcript, agreed, ciphertext, sender, receiver)
    return unseal(key, rest, _sealing_context(usage, transcript, sender, receiver))


def self_mask(transcript: Transcript, self_secret: Secret) -> MaskTerm:
    """The mask that a client adds alone: seed HKDF(b, ctx, "self", L1)."""
    seed = derive(self_secret.reveal(), transcript.context, Usage.SELF_MASK, transcript.cohort)
    return MaskTerm(sign=1, seed=Secret(seed))


def pair_mask(transcript: Transcript, secret: Secret, *, owner: int, peer: int) -> MaskTerm:
    """The mask that `owner` adds for `peer`, added if owner < peer; the peer adds the same with the other sign.

    Seed: HKDF(pair secret, ctx, "pair", L1, min, max).
    """
    low, high = min(owner, peer), max(owner, peer)
    seed = derive(secret.reveal(), transcript.context, Usage.PAIR_MASK, transcript.cohort, low, high)
    return MaskTerm(sign=1 if owner < peer else -1, seed=Secret(seed))


def _seal(
    usage: Usage, transcript: Transcript, pair: KeyPair, peer_public: bytes, *, sender: int, receiver: int, text: bytes
) -> bytes:
    ciphertext, agreed = pair.encapsulate(peer_public)
    key = _sealing_key(usage, transcript, agreed, ciphertext, sender, receiver)
    return ciphertext + seal(key, text, _sealing_context(usage, transcript, sender, receiver))


def _open(
    usage: Usage,
    transcript: Transcript,
    pair: KeyPair,
    peer_public: bytes,
    *,
    sender: int,
    receiver: int,
    sealed: bytes,
) -> bytes | None:
    agreed = pair.decapsulate(peer_public, sealed[: pair.agreement.ciphertext_bytes])
    return open_with(usage, transcript, pair.agreement, agreed, sender=sender, receiver=receiver, sealed=sealed)


def _sealing_key(
    usage: Usage, transcript: Transcript, agreed: Secret, ciphertext: bytes, sender: int, receiver: int
) -> bytes:
    return derive(agreed.reveal(), transcript.context, usage, transcript.cohort, ciphertext, sender, receiver)


def _sealing_context(usage: Usage, transcript: Transcript, sender: int, receiver: int) -> bytes:
    return statement(usage, transcript.context, transcript.cohort, sender, receiver)
