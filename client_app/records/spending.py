"""The privacy budget that a client has spent, in numbers and in words, for the audit, the status page and transcripts.

Epsilon bounds what the sums reveal about the client as a whole. An update without noise has no such bound, however many
others are in its sum, and then neither has the total. The noise of sums that protects single rows, as that of boosted
trees, counts by itself (`RowSpending`). The noise that statistics may add for each record
(`fedcore.codec.privacy.site_noise`) does not count here.
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
from fedcore.federation.transcript import NoisedSum
from fedcore.monitoring.formatting import count_of
from fedcore.monitoring.promise import MASKS_ONLY, masks_and_noise, masks_and_row_noise


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpending:
    """The epsilon of one row: of all sums with noise, be it for rows alone or for the client."""

    sums: int
    """Those with noise for rows alone that are not proven to have stayed masked."""
    epsilon: float
    delta: float
    allowed: float | None = None
    """The policy's `max-row-epsilon`; None for no limit."""

    def __str__(self) -> str:
        bounded = f"epsilon {self.epsilon:.4g} at delta {self.delta:g} for each row ({count_of(self.sums, 'sum')})"
        if self.allowed is None:
            return f"{bounded}; policy.toml sets no limit"
        left = max(self.allowed - self.epsilon, 0.0)
        return f"{bounded}; {f'{left:.4g}' if left else 'nothing'} of {self.allowed:g} left"


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
    rows: RowSpending | None = None
    """Of sums with noise for rows alone, which bounds nothing of the client; None if there are none."""

    def __str__(self) -> str:
        if self.rows is not None and not self.noised and not self.noiseless:
            return "noise protects rows alone: epsilon of this client as a whole is unbounded"
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
        if self.rows is not None and not self.noiseless:
            return masks_and_row_noise(self.rows.epsilon, self.delta)
        if self.noiseless or not (self.noised or self.allowed):
            return MASKS_ONLY
        return masks_and_noise(self.noised_epsilon if self.noised else self.allowed or 0.0, self.delta)

    @property
    def in_short(self) -> str:
        """For a cell of a table."""
        if not self.noised and not self.noiseless:
            return "-" if self.rows is None else f"{self.rows.epsilon:.4g} a row"
        return "no bound" if self.epsilon is None else f"{self.epsilon:.4g}"


def spending_of(
    noised: Iterable[Release],
    noiseless: int,
    *,
    delta: float,
    allowed: float = 0.0,
    rows: Iterable[Release] = (),
    allowed_rows: float = 0.0,
) -> SpentBudget:
    """The budget that these sums have spent.

    Args:
        noised: the sums with noise.
        noiseless: how many updates without noise there are.
        delta: at which epsilon is stated.
        allowed: the policy's limit, 0 for no limit.
        rows: the sums with noise for rows alone.
        allowed_rows: the policy's limit of these, 0 for no limit.
    """
    releases, of_rows = Counter(noised), Counter(rows)
    epsilon = _epsilon(tuple(releases.items()), delta)
    return SpentBudget(
        noised=releases.total(),
        noiseless=noiseless,
        epsilon=None if noiseless or of_rows else epsilon,
        noised_epsilon=epsilon,
        delta=delta,
        allowed=allowed or None,
        left=max(allowed - epsilon, 0.0) if allowed else None,
        rows=RowSpending(
            sums=of_rows.total(),
            epsilon=_epsilon(tuple((releases + of_rows).items()), delta),
            delta=delta,
            allowed=allowed_rows or None,
        )
        if of_rows
        else None,
    )


def spent_by_run(entries: Iterable[Entry], policy: Policy) -> tuple[SpentBudget, dict[str, SpentBudget]]:
    """The budget that a ledger's client has spent: in total, and in each run with an upload."""
    noised, noiseless = _releases(entries)

    def spending(of: str | None, **limits: float) -> SpentBudget:
        sums = [one for (run, _), one in noised.items() if of in (None, run)]
        return spending_of(
            (one.release for one in sums if not one.rows),
            sum(of in (None, run) for run, _ in noiseless),
            rows=(one.release for one in sums if one.rows),
            delta=policy.delta,
            **limits,
        )

    runs = {run for run, _ in (*noised, *noiseless)}
    total = spending(None, allowed=policy.max_epsilon, allowed_rows=policy.max_row_epsilon)
    return total, {run: spending(run) for run in runs}


def _releases(entries: Iterable[Entry]) -> tuple[dict[tuple[str, int], NoisedSum], set[tuple[str, int]]]:
    """By run and exchange: noised sums that may have been opened, and exchanges with an upload without noise."""
    noised: dict[tuple[str, int], NoisedSum] = {}
    began: set[tuple[str, int]] = set()
    returned: set[tuple[str, int]] = set()
    for entry in entries:
        key = (entry.run, entry.exchange)
        match entry:
            case SpentEntry():
                noised[key] = entry.attempt
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
