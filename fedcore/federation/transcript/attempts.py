"""The proof that a noised sum was never unmasked, so that its epsilon is returned."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Self

from fedcore.codec.privacy import Release
from fedcore.federation.transcript.chain import Chain
from fedcore.wire.base import ClientId, Message
from fedcore.wire.tasks import Task


class NoisedSum(Message):
    """One exchange in which a client's noised update left its machine.

    previous: the record before it.
    full_graph: whether every client holds a share of every secret.
    rows: the noise protects each row of the client alone, and not the client as a whole.
    """

    run: str
    exchange: int
    release: Release
    previous: str
    cohort: list[ClientId]
    quorum: int
    corrupt: int
    threshold: int
    full_graph: bool
    rows: Literal[True] | None = None

    @classmethod
    def of(cls, task: Task, release: Release, *, rows: bool = False) -> Self:
        """The attempt that a secure task asks for; `rows` as the field."""
        protection = task.protection
        assert protection is not None  # noqa: S101 - admission refused it
        return cls(
            run=task.run,
            exchange=task.exchange,
            release=release,
            previous=task.previous,
            cohort=task.cohort,
            quorum=task.quorum,
            corrupt=protection.corrupt,
            threshold=protection.threshold,
            full_graph=protection.degree == len(task.cohort) - 1,
            rows=True if rows else None,
        )


def never_unmasked(attempt: NoisedSum, chain: Chain, *, present: Collection[int] = ()) -> bool:
    """Whether the chain proves that no server, and no `corrupt` clients with it, ever took the masks off the sum.

    An honest client goes on only with a chain that holds every record it signed, and never returns to an earlier
    exchange of a run. So a client that signed a later record of a chain without this attempt, or advertised keys
    after it, did not sign its survivors and will not. If more than n - quorum + corrupt of the cohort did, no quorum
    can have signed. If the attempt has an unfinished record, they may have signed, but they saw no quorum and so keep
    their shares: on the full graph more than n - threshold + corrupt of them leave too few to rebuild a secret.

    Args:
        present: clients that take part in a later exchange of the same run, on this very chain, as their signed keys
            show.
    """
    later = chain.after(attempt.previous)
    if later is None:
        return False
    needed = attempt.quorum
    # The attempt names the record before it, so its own can only be the next one.
    if later and (later[0].run, later[0].exchange) == (attempt.run, attempt.exchange):
        if later[0].complete or not attempt.full_graph:
            return False
        needed, later = attempt.threshold, later[1:]
    elsewhere = frozenset(present).union(*(link.signers for link in later)) & set(attempt.cohort)
    return len(elsewhere) > len(attempt.cohort) - needed + attempt.corrupt
