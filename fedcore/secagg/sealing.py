"""What a client deals in R1: shares of its secrets and the secrets of its masks, each sealed for one neighbour."""

from __future__ import annotations

from collections.abc import Mapping

from fedcore.secagg import dealing
from fedcore.secagg.client_memory import DealtShares
from fedcore.secagg.crypto import schedule, shamir
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.keys import Randomness, Secret
from fedcore.secagg.graph import Graph
from fedcore.secagg.messages import Advertisement


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
    transcript: schedule.Transcript,
    pair: KeyPair,
    publics: Mapping[int, Advertisement],
    dealt: Mapping[int, DealtShares],
    *,
    owner: int,
) -> dict[int, bytes]:
    """Commit to every pair of shares and seal it for its holder; the owner's own stays with it."""
    return {
        holder: dealing.commit(transcript.context, owner, holder, shares.text)
        + schedule.seal_shares(
            transcript, pair, publics[holder].c_public, sender=owner, receiver=holder, text=shares.text
        )
        for holder, shares in dealt.items()
        if holder != owner
    }


def sealed_pair_secrets(
    transcript: schedule.Transcript,
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
