"""The privacy budget that a client has spent, in numbers and in words, for the audit, the status page and transcripts.

Epsilon bounds what the sums reveal about the client as a whole. An update without noise has no such bound, however many
others are in its sum, and then neither has the total. The noise that statistics may add for each record
(`fedcore.codec.privacy.site_noise`) protects records, not the client, and does not count here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from client_app.records.ledger_entries import Entry, RefundEntry, SpentEntry, UploadEntry
from fedcore.codec.privacy import Accountant, Release
from fedcore.federation import Policy
from fedcore.federation.admission.owner import AgreedSum
from fedcore.monitoring.promise import MASKS_ONLY, masks_and_noise


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentBudget:
    """The epsilon spent, and what the owner's policy leaves."""

    noised: int
    """Updates with noise that are not proven to have stayed masked."""
    noiseless: int
    """Updates without noise that began to leave."""
    epsilon: float | None
    """Of all updates; None if it is unbounded, for which one update without noise is enough."""
    noised_epsilon: float
    """Of the updates with noise, which is what `max-epsilon` counts."""
    delta: float
    allowed: float | None = None
    """The policy's limit of `noised_epsilon`; None for no limit."""
    left: float | None = None
    """What is left of that limit; None for no limit."""

    def __str__(self) -> str:
        if not self.noised and not self.noiseless:
            return "nothing was released"
        if not self.noised:
            return "no noise was added: epsilon is unbounded"
        bounded = f"epsilon {self.noised_epsilon:.4g} at delta {self.delta:g}"
        if not self.noiseless:
            return bounded
        of = self.noised + self.noiseless
        return (
            f"no noise was added to {self.noiseless} of {of} updates: epsilon is unbounded ({bounded} for the others)"
        )

    @property
    def limit(self) -> str:
        """What the owner's limit leaves, in words."""
        if self.allowed is None or self.left is None:
            return "policy.toml sets no limit"
        left = f"{self.left:.4g}" if self.left else "nothing"
        others = ", which counts updates with noise alone" if self.noiseless else ""
        return f"{left} of {self.allowed:g} left{others}"

    @property
    def promise(self) -> str:
        """What the masks and the noise of these updates promise, in one sentence."""
        if self.noiseless or not (self.noised or self.allowed):
            return MASKS_ONLY
        return masks_and_noise(self.noised_epsilon if self.noised else self.allowed or 0.0, self.delta)

    @property
    def in_short(self) -> str:
        """For a cell of a table."""
        if not self.noised and not self.noiseless:
            return "-"
        return "no bound" if self.epsilon is None else f"{self.epsilon:.4g}"


def spending_of(noised: Iterable[Release], noiseless: int, *, delta: float, allowed: float = 0.0) -> SpentBudget:
    """The budget that these sums have spent.

    Args:
        noised: the sums with noise.
        noiseless: how many updates without noise there are.
        delta: at which epsilon is stated.
        allowed: the policy's limit, 0 for no limit.
    """
    releases = Counter(noised)
    epsilon = _epsilon(tuple(releases.items()), delta)
    return SpentBudget(
        noised=releases.total(),
        noiseless=noiseless,
        epsilon=None if noiseless else epsilon,
        noised_epsilon=epsilon,
        delta=delta,
        allowed=allowed or None,
        left=max(allowed - epsilon, 0.0) if allowed else None,
    )


def spent_by_run(entries: Iterable[Entry], policy: Policy) -> tuple[SpentBudget, dict[str, SpentBudget]]:
    """The budget that a ledger's client has spent: in total, and in each run with an upload."""
    noised, noiseless = _releases(entries)
    runs = {run for run, _ in (*noised, *noiseless)}
    each = {
        run: spending_of(
            (release for (of, _), release in noised.items() if of == run),
            sum(of == run for of, _ in noiseless),
            delta=policy.delta,
        )
        for run in runs
    }
    return spending_of(noised.values(), len(noiseless), delta=policy.delta, allowed=policy.max_epsilon), each


def _releases(entries: Iterable[Entry]) -> tuple[dict[tuple[str, int], Release], set[tuple[str, int]]]:
    """By run and exchange: noised sums that may have been opened, and exchanges with an upload without noise."""
    noised: dict[tuple[str, int], Release] = {}
    began: set[tuple[str, int]] = set()
    returned: set[tuple[str, int]] = set()
    for entry in entries:
        key = (entry.run, entry.exchange)
        match entry:
            case SpentEntry():
                noised[key] = entry.attempt.release
            case RefundEntry():
                noised.pop(key, None)
                returned.add(key)
            case UploadEntry() | AgreedSum():  # ledgers of earlier versions have no line of what was sent
                began.add(key)
    return noised, began - noised.keys() - returned


@lru_cache(maxsize=4096)
def _epsilon(noised: tuple[tuple[Release, int], ...], delta: float) -> float:
    accountant = Accountant()
    for release, times in noised:
        accountant.add(release, times)
    return accountant.epsilon(delta)
