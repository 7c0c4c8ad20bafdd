"""The result step: from released shares to the masks that are still in the sum.

For a survivor the server rebuilds b and removes the self mask. For a sharer that dropped out it rebuilds the mask
root r, and with it the secrets that the owner chose or that its neighbours sealed for it, and removes what the
survivors among them added. Every rebuilt secret is held against what its owner published, so neither a wrong share
nor a chance hit of the decoder can spoil the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fedcore.errors import UnmaskFailed
from fedcore.secagg import schedule
from fedcore.secagg.agreement import KeyPair
from fedcore.secagg.graph import Graph
from fedcore.secagg.keys import Randomness, Secret
from fedcore.secagg.masking import MaskTerm
from fedcore.secagg.messages import Advertisement, KeyShares, UnmaskShares
from fedcore.secagg.parameters import RoundParameters
from fedcore.secagg.shamir import Rebuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the server holds when the last stage closes, each keyed by client id."""

    parameters: RoundParameters
    transcript: schedule.Transcript
    graph: Graph
    publics: Mapping[int, Advertisement]
    dealt: Mapping[int, KeyShares]
    sharers: tuple[int, ...]
    survivors: tuple[int, ...]
    released: Mapping[int, UnmaskShares]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmasking:
    """`terms` added to the sum leave the plain sum; `wrong` names senders of wrong shares, and what they sent."""

    terms: tuple[MaskTerm, ...]
    wrong: Mapping[int, str]


def unmask(evidence: Evidence, randomness: Randomness) -> Unmasking:
    """Rebuild every secret that the sum needs; UnmaskFailed, naming the client, where one cannot be rebuilt."""
    work = _Work(evidence, randomness)
    terms = [work.self_mask(survivor).inverse() for survivor in evidence.survivors]
    for dropped in sorted(set(evidence.sharers) - set(evidence.survivors)):
        terms.extend(work.pair_masks(dropped))
    return Unmasking(terms=tuple(terms), wrong=work.wrong)


class _Work:
    """One pass over all secrets; remembers who has sent a wrong share."""

    def __init__(self, evidence: Evidence, randomness: Randomness) -> None:
        self._evidence = evidence
        self._survivors = frozenset(evidence.survivors)
        self._rebuilder = Rebuilder(
            threshold=evidence.parameters.threshold, holders=evidence.graph.holders, randomness=randomness
        )
        self.wrong: dict[int, str] = {}

    def self_mask(self, owner: int) -> MaskTerm:
        """The self mask of a survivor."""
        evidence = self._evidence
        context, expected = evidence.transcript.context, evidence.dealt[owner].commitment
        shares = {v: evidence.released[v].self_shares[owner] for v in self._holders(owner) if v in evidence.released}
        secret = self._rebuild(
            f"the self secret of client {owner}",
            owner,
            shares,
            lambda secret: schedule.commits_to(expected, context, owner, secret),
        )
        return schedule.self_mask(evidence.transcript, secret)

    def pair_masks(self, owner: int) -> Iterable[MaskTerm]:
        """What the survivors added for a neighbour that dropped out, each inverted.

        The peer's term is the owner's with the other sign, so the owner's own term is the one that removes it.
        """
        evidence = self._evidence
        agreement, expected = evidence.parameters.agreement, evidence.publics[owner].s_public
        shares = {v: evidence.released[v].key_shares[owner] for v in self._holders(owner) if v in evidence.released}
        root = self._rebuild(
            f"the mask root of client {owner}",
            owner,
            shares,
            lambda secret: KeyPair.from_root(agreement, secret).public == expected,
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
            raise UnmaskFailed(f"client {peer} sealed something else than a secret for client {owner}")
        return secret

    def _holders(self, owner: int) -> tuple[int, ...]:
        return (*self._evidence.graph.neighbours(owner), owner)

    def _rebuild(self, name: str, owner: int, shares: Mapping[int, bytes], verify: Callable[[Secret], bool]) -> Secret:
        """Rebuild one secret, first without those who sent a wrong share before, where enough others are left."""
        trusted = {v: share for v, share in shares.items() if v not in self.wrong}
        if trusted != shares:
            try:
                return self._record(name, owner, trusted, verify)
            except UnmaskFailed:
                pass  # Too few; or a dealer has made an honest holder look bad, whose other shares count then.
        try:
            return self._record(name, owner, shares, verify)
        except UnmaskFailed as failed:
            raise UnmaskFailed(f"{name} is lost: {failed}") from None

    def _record(self, name: str, owner: int, shares: Mapping[int, bytes], verify: Callable[[Secret], bool]) -> Secret:
        senders = {self._evidence.graph.point(owner, sender): sender for sender in shares}
        recovered = self._rebuilder.rebuild({point: shares[v] for point, v in senders.items()}, verify)
        for sender in sorted(senders[point] for point in recovered.wrong):
            self.wrong.setdefault(sender, f"its share of {name} is wrong")
        return recovered.secret
