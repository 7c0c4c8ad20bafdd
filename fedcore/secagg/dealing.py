"""What a client deals in R1, and what it publishes of that, so that a dealer that cheats with a share can be named.

A neighbour's *parcel* is two commitments, to its share of the mask root r and to its share of the self secret b, and
behind them both shares, sealed. The commitments are hashes cut to 16 bytes: they bind, since only a second preimage,
2^128 tries, would let a holder release another share, and shares are uniform in 256 bits, so a hash tells nothing of
them. (A dealer may find two shares with one commitment in 2^64 tries; that cheats nobody but itself.)

The dealer signs the root of a tree with one leaf for each holder, itself included. Server and receivers look at that
signature only if something is wrong: in the good case the sealing already tells a receiver whose share it has.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from fedcore.secagg.checks import Check
from fedcore.secagg.client_memory import DealtShares
from fedcore.secagg.crypto import schedule, shamir
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.domain import Usage, statement, tagged_hash
from fedcore.secagg.crypto.keys import Randomness, Secret
from fedcore.secagg.crypto.possession import PROOF_BYTES, PairName, holds, prove
from fedcore.secagg.crypto.schedule import Transcript
from fedcore.secagg.crypto.shamir import SHARE_BYTES, is_share
from fedcore.secagg.crypto.tree import Tree, root_of
from fedcore.secagg.graph import Graph
from fedcore.secagg.messages import COMMITMENTS_BYTES, SHARE_COMMITMENT_BYTES, Advertisement, Dealing, KeyShares

_KEY, _SELF = "key", "self"


def deal(
    mask_root: Secret, self_secret: Secret, graph: Graph, *, owner: int, threshold: int, randomness: Randomness
) -> dict[int, DealtShares]:
    """Split both secrets of `owner`; holder -> the pair of shares that it is dealt."""
    key_shares, self_shares = (
        shamir.split(secret, threshold=threshold, holders=graph.holders, randomness=randomness)
        for secret in (mask_root, self_secret)
    )
    indices = {holder: graph.point(owner, holder) - 1 for holder in (*graph.neighbours(owner), owner)}
    return {holder: DealtShares(key_shares[index], self_shares[index]) for holder, index in indices.items()}


def parcels(
    transcript: Transcript,
    pair: KeyPair,
    publics: Mapping[int, Advertisement],
    dealt: Mapping[int, DealtShares],
    *,
    owner: int,
) -> dict[int, bytes]:
    """Commit to every pair of shares and seal it for its holder; the owner's own stays with it."""
    return {
        holder: commit(transcript.context, owner, holder, shares.text)
        + schedule.seal_shares(
            transcript, pair, publics[holder].c_public, sender=owner, receiver=holder, text=shares.text
        )
        for holder, shares in dealt.items()
        if holder != owner
    }


def sealed_pair_secrets(
    transcript: Transcript,
    pair: KeyPair,
    publics: Mapping[int, Advertisement],
    graph: Graph,
    *,
    owner: int,
) -> dict[int, bytes]:
    """Seal the secrets that `owner` chooses, each for the neighbour whom it is shared with."""
    return {
        peer: schedule.seal_pair_secret(
            transcript,
            pair,
            publics[peer].s_public,
            sender=owner,
            receiver=peer,
            secret=schedule.pair_secret(transcript, pair.root, chooser=owner, peer=peer),
        )
        for peer in graph.neighbours(owner)
        if graph.chooses(owner, peer)
    }


def commit(context: bytes, owner: int, holder: int, text: bytes) -> bytes:
    """Both commitments to what `owner` deals `holder`: its share of r, then of b, 33 bytes each; 32 bytes."""
    of_key, of_self = text[:SHARE_BYTES], text[SHARE_BYTES:]
    return _commitment(context, owner, holder, _KEY, of_key) + _commitment(context, owner, holder, _SELF, of_self)


def is_committed(commitments: bytes, context: bytes, owner: int, holder: int, share: bytes, *, of_self: bool) -> bool:
    """Whether a released share, of b or else of r, is the one that was dealt."""
    half = commitments[SHARE_COMMITMENT_BYTES:] if of_self else commitments[:SHARE_COMMITMENT_BYTES]
    made = _commitment(context, owner, holder, _SELF if of_self else _KEY, share)
    return hmac.compare_digest(half, made)


def commitments_for(message: KeyShares, holder: int) -> bytes:
    """Both commitments to what the sender dealt `holder`, itself or a neighbour; 32 bytes."""
    if holder == message.client_id:
        return message.own_commitments
    return split_parcel(message.shares[holder])[0]


def split_parcel(parcel: bytes) -> tuple[bytes, bytes]:
    """The commitments (32 bytes), and what is sealed."""
    return parcel[:COMMITMENTS_BYTES], parcel[COMMITMENTS_BYTES:]


def fault_in(text: bytes | None, commitments: bytes, context: bytes, owner: int, holder: int) -> Check | None:
    """What is wrong with an opened parcel; `text` are 66 bytes, None if it did not open."""
    if text is None:
        return Check.SHARE_UNSEALING
    shares = text[:SHARE_BYTES], text[SHARE_BYTES:]
    if not all(map(is_share, shares)) or not hmac.compare_digest(commit(context, owner, holder, text), commitments):
        return Check.UNCOMMITTED_SHARE
    return None


def dealing_statement(transcript: Transcript, client_id: int, commitment: bytes, root: bytes) -> bytes:
    """What a client signs in R1: ("shares", ctx, L1, id, its commitment to b, the root over what it dealt)."""
    return statement(Usage.DEALING, transcript.context, transcript.cohort, client_id, commitment, root)


def dealing_tree(message: KeyShares, graph: Graph) -> Tree:
    """The tree over what each holder is dealt, in the order of the points on the dealer's polynomials."""
    owner = message.client_id
    leaves = {graph.point(owner, owner): _leaf(owner, message.own_commitments, b"")}
    for holder, parcel in message.shares.items():
        leaves[graph.point(owner, holder)] = _leaf(holder, parcel, message.pair_secrets.get(holder, b""))
    return Tree([leaves[point] for point in sorted(leaves)])


def dealing_for(message: KeyShares, graph: Graph, holder: int) -> Dealing:
    """The evidence for one holder: the dealer's signature, and the way from this holder's leaf to the root."""
    proof = dealing_tree(message, graph).prove([graph.point(message.client_id, holder) - 1])
    return Dealing(message.client_id, message.commitment, message.signature, message.possession, proof)


def possession(pairs: Mapping[PairName, KeyPair], context: bytes, owner: int) -> bytes:
    """The proofs that `owner` has the private halves of both its keys, 128 bytes."""
    return b"".join(prove(pairs[name], context, owner, name) for name in PairName)


def is_possessed(member: Advertisement, proofs: bytes, context: bytes) -> bool:
    """Whether these are proofs for the keys that a client advertised."""
    keys = {PairName.SEAL: member.c_public, PairName.MASK: member.s_public}
    halves = proofs[:PROOF_BYTES], proofs[PROOF_BYTES:]
    return all(
        holds(keys[name], half, context, member.client_id, name) for name, half in zip(PairName, halves, strict=True)
    )


def dealt_root(dealing: Dealing, graph: Graph, holder: int, parcel: bytes, pair_secret: bytes) -> bytes:
    """The root that `dealing` must sign if its dealer sent `holder` these; `pair_secret` is empty if it chose none.

    Raises ProtocolViolation("malformed") if the proof has another length.
    """
    index = graph.point(dealing.client_id, holder) - 1
    return root_of({index: _leaf(holder, parcel, pair_secret)}, graph.holders, dealing.proof)


def _leaf(holder: int, parcel: bytes, pair_secret: bytes) -> bytes:
    return tagged_hash(Usage.DEALING_LEAF, holder, parcel, pair_secret)


def _commitment(context: bytes, owner: int, holder: int, kind: str, share: bytes) -> bytes:
    return tagged_hash(Usage.SHARE_COMMITMENT, context, owner, holder, kind, share)[:SHARE_COMMITMENT_BYTES]
