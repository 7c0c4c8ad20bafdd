"""The result step: from released shares to the masks that are still in the sum.

For a survivor the server rebuilds b and removes the self mask. For a sharer that dropped out it rebuilds the mask key
s and removes what its neighbours among the survivors added for it. Every secret is held against what its owner
published, so neither a wrong share nor a chance hit of the decoder can spoil the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fedcore.errors import UnmaskFailed
from fedcore.secagg import schedule
from fedcore.secagg.graph import neighbours
from fedcore.secagg.keys import KeyPair, Randomness, Secret
from fedcore.secagg.masking import MaskTerm
from fedcore.secagg.messages import Advertisement, UnmaskShares
from fedcore.secagg.parameters import RoundParameters
from fedcore.secagg.shamir import Rebuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the server holds when the last stage closes, each keyed by client id."""

    parameters: RoundParameters
    transcript: schedule.Transcript
    publics: Mapping[int, Advertisement]
    commitments: Mapping[int, bytes]
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
        self._rebuilder = Rebuilder(threshold=evidence.parameters.threshold, randomness=randomness)
        self.wrong: dict[int, str] = {}

    def self_mask(self, owner: int) -> MaskTerm:
        """The self mask of a survivor."""
        evidence = self._evidence
        context, expected = evidence.transcript.context, evidence.commitments[owner]
        secret = self._rebuild(
            f"the self secret of client {owner}",
            {v: m.self_shares[owner] for v, m in evidence.released.items() if owner in m.self_shares},
            lambda secret: schedule.commits_to(expected, context, owner, secret),
        )
        return schedule.self_mask(evidence.transcript, secret)

    def pair_masks(self, owner: int) -> Iterable[MaskTerm]:
        """What the survivors added for a neighbour that dropped out, each inverted.

        The peer's term is the owner's with the other sign, so the owner's own term is the one that removes it.
        """
        evidence = self._evidence
        expected = evidence.publics[owner].s_public
        secret = self._rebuild(
            f"the mask key of client {owner}",
            {v: m.key_shares[owner] for v, m in evidence.released.items() if owner in m.key_shares},
            lambda secret: KeyPair.from_private(secret.reveal()).public == expected,
        )
        pair = KeyPair.from_private(secret.reveal())
        peers = neighbours(evidence.sharers, owner, degree=evidence.parameters.degree)
        return [
            schedule.pair_mask(evidence.transcript, pair, evidence.publics[peer].s_public, owner=owner, peer=peer)
            for peer in peers
            if peer in evidence.survivors
        ]

    def _rebuild(self, name: str, shares: Mapping[int, bytes], verify: Callable[[Secret], bool]) -> Secret:
        """Rebuild one secret, first without those who sent a wrong share before, where enough others are left."""
        trusted = {v: share for v, share in shares.items() if v not in self.wrong}
        if self.wrong and len(trusted) >= self._evidence.parameters.threshold:
            try:
                return self._record(name, trusted, verify)
            except UnmaskFailed:
                pass  # A dealer may have made an honest holder look bad: his other shares count then.
        try:
            return self._record(name, shares, verify)
        except UnmaskFailed as failed:
            raise UnmaskFailed(f"{name} is lost: {failed}") from None

    def _record(self, name: str, shares: Mapping[int, bytes], verify: Callable[[Secret], bool]) -> Secret:
        recovered = self._rebuilder.rebuild(shares, verify)
        for sender in sorted(recovered.wrong):
            self.wrong.setdefault(sender, f"its share of {name} is wrong")
        return recovered.secret
