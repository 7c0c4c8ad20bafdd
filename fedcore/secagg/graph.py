"""Who shares secrets and masks with whom: the one place that knows the graph."""

from __future__ import annotations

from collections.abc import Collection

from fedcore.errors import UsageError


def neighbours(members: Collection[int], member: int, *, degree: int) -> tuple[int, ...]:
    """The clients with whom `member` exchanges shares and pairwise masks, in ascending order.

    `members` are those that advertised keys (U1), `degree` is k of the round's parameters. On the full graph these
    are all others, as many as there are left of the k that were asked (Bonawitz et al. 2017). Raises UsageError
    for a sparser graph.
    """
    others = tuple(sorted(other for other in members if other != member))
    if degree < len(others):
        raise UsageError("only the full graph is known: degree must be the cohort's size less one")
    return others
