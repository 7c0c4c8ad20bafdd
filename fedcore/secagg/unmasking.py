"""The result step: from released shares to the masks that are still in the sum.

For a survivor the server rebuilds b and removes the self mask. For a sharer that dropped out it rebuilds the mask
root r, and with it the secrets that the owner chose or that its neighbours sealed for it, and removes what the
survivors among them added. Every rebuilt secret is held against what its owner published, so a wrong share cannot spoil
the sum. Only if something does not fit is each share held against its commitment, which tells who cheated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from fedcore.errors import UnmaskFailed
from fedcore.secagg import dealing
from fedcore.secagg.checks import Fault
from fedcore.secagg.crypto import schedule
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.keys import Randomness, Secret
from fedcore.secagg.crypto.masking import MaskTerm
from fedcore.secagg.crypto.shamir import Rebuilder
from fedcore.secagg.graph import Graph
from fedcore.secagg.messages import Advertisement, KeyShares, UnmaskShares
from fedcore.secagg.parameters import RoundParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the server holds when the last stage closes, each keyed by client id; `blamed` is to be added to."""

    parameters: RoundParameters
    transcript: schedule.Transcript
    graph: Graph
    publics: Mapping[int, Advertisement]
    dealt: Mapping[int, KeyShares]
    sharers: tuple[int, ...]
    survivors: tuple[int, ...]
    released: Mapping[int, UnmaskShares]
    blamed: MutableMapping[int, Fault]


def unmask(evidence: Evidence, randomness: Randomness) -> tuple[MaskTerm, ...]:
    """What leaves the plain sum when it is added to the sum; rebuilds every secret that this needs.

    `evidence.blamed` gets who is found to have cheated. Raises UnmaskFailed, naming the first secret that is lost,
    after all have been looked at.
    """
    work = _Work(evidence, randomness)
    terms: list[MaskTerm] = []
    lost: list[UnmaskFailed] = []
    for owner in evidence.sharers:
        try:
            terms += work.masks_of(owner)
        except UnmaskFailed as failed:
            lost.append(failed)
    if lost:
        raise lost[0]
    return tuple(terms)


class _Work:
    """One pass over all secrets."""

    def __init__(self, evidence: Evidence, randomness: Randomness) -> None:
        self._evidence = evidence
        self._survivors = frozenset(evidence.survivors)
        self._rebuilder = Rebuilder(
            threshold=evidence.parameters.threshold, holders=evidence.graph.holders, randomness=randomness
        )

    def masks_of(self, owner: int) -> list[MaskTerm]:
        """What takes off a survivor's self mask, or the masks that a sharer left behind that did not survive."""
        return [self._self_mask(owner).inverse()] if owner in self._survivors else self._pair_masks(owner)

    def _self_mask(self, owner: int) -> MaskTerm:
        evidence = self._evidence
        context, expected = evidence.transcript.context, evidence.dealt[owner].commitment
        secret = self._rebuild(
            owner, lambda secret: schedule.commits_to(expected, context, owner, secret), of_self=True
        )
        return schedule.self_mask(evidence.transcript, secret)

    def _pair_masks(self, owner: int) -> list[MaskTerm]:
        """What the survivors added for a neighbour that dropped out, each inverted.

        The peer's term is the owner's with the other sign, so the owner's own term is the one that removes it.
        """
        evidence = self._evidence
        agreement, expected = evidence.parameters.agreement, evidence.publics[owner].s_public
        root = self._rebuild(
            owner, lambda secret: KeyPair.from_root(agreement, secret).public == expected, of_self=False
        )
        pair = KeyPair.from_root(agreement, root)
        return [
            schedule.pair_mask(evidence.transcript, self._pair_secret(pair, owner, peer), owner=owner, peer=peer)
            for peer in evidence.graph.neighbours(owner)
            if peer in self._survivors
        ]

    def _pair_secret(self, pair: KeyPair, owner: int, peer: int) -> Secret:
        """The secret of a client that dropped out and a survivor, by whichever of the two chose it."""
        evidence = self._evidence
        if evidence.graph.chooses(owner, peer):
            return schedule.pair_secret(evidence.transcript, pair.root, chooser=owner, peer=peer)
        sealed, public = evidence.dealt[peer].pair_secrets[owner], evidence.publics[peer].s_public
        secret = schedule.open_pair_secret(
            evidence.transcript, pair, public, sender=peer, receiver=owner, sealed=sealed
        )
        if secret is None:
            evidence.blamed.setdefault(peer, Fault.SEALED_GARBAGE)
            raise UnmaskFailed(
                f"client {peer} sealed something else than a secret for client {owner}", check="sealed-garbage"
            )
        return secret

    def _rebuild(self, owner: int, verify: Callable[[Secret], bool], *, of_self: bool) -> Secret:
        """Rebuild one secret: from all shares if they fit, else from those that its owner committed to.

        Any t of these give the secret that an honest owner published. If they do not, it is the owner that cheated.
        """
        what = "self secret" if of_self else "mask root"
        name, short = f"the {what} of client {owner}", what.replace(" ", "-")
        shares = self._shares(owner, of_self=of_self)
        point = self._evidence.graph.point
        try:
            secret = self._rebuilder.rebuild({point(owner, v): share for v, share in shares.items()}, verify)
            if secret is None:
                good = self._committed(owner, shares, of_self=of_self)
                secret = self._rebuilder.rebuild({point(owner, v): share for v, share in good.items()}, verify)
        except UnmaskFailed as failed:
            raise UnmaskFailed(f"{name} is lost: {failed}", check=f"{short}-lost") from None
        if secret is None:
            self._evidence.blamed.setdefault(owner, Fault.INCONSISTENT_DEALING)
            raise UnmaskFailed(f"{name} is lost: it is another one than its owner shared", check=f"other-{short}")
        return secret

    def _shares(self, owner: int, *, of_self: bool) -> dict[int, bytes]:
        """Holder -> the share that it released."""
        released = self._evidence.released
        holders = [v for v in (*self._evidence.graph.neighbours(owner), owner) if v in released]
        if of_self:
            return {v: released[v].self_shares[owner] for v in holders}
        return {v: released[v].key_shares[owner] for v in holders}

    def _committed(self, owner: int, shares: Mapping[int, bytes], *, of_self: bool) -> dict[int, bytes]:
        """Those that the owner dealt; the senders of the others are to blame."""
        evidence, good = self._evidence, dict(shares)
        for holder, share in shares.items():
            commitments = dealing.commitments_for(evidence.dealt[owner], holder)
            context = evidence.transcript.context
            if not dealing.is_committed(commitments, context, owner, holder, share, of_self=of_self):
                evidence.blamed.setdefault(holder, Fault.WRONG_SHARE)
                del good[holder]
        return good
