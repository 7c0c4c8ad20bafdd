"""When the epsilon of an attempt is returned: only where no server can have taken the masks off its sum."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from support.records import Notary, make_task

from fedcore.codec.privacy import Release
from fedcore.federation.transcript import Chain, NoisedSum, keys_of, never_unmasked
from fedcore.wire.tasks import Protection

RELEASE = Release(mechanism="skellam", variance=1e6, shares=3, scale=1024, dimension=100)


def attempt_at(notary: Notary, exchange: int, **changes: Any) -> NoisedSum:
    """An attempt that this client's update left its machine for, after what is in the chain now."""
    return NoisedSum.of(make_task(exchange, previous=notary.head, **changes), RELEASE)


def returned(notary: Notary, attempt: NoisedSum, *, anchor: str = "", present: Collection[int] = ()) -> bool:
    chain = Chain(anchor=anchor)
    for signed in notary.records:
        if anchor == "" or chain.links or signed.record.task["previous"] == anchor:
            chain.extend(signed, keys_of([notary.roster]))
    return never_unmasked(attempt, chain, present=present)


def test_a_quorum_that_went_on_without_it() -> None:
    notary = Notary.of()
    notary.sum(1)
    attempt = attempt_at(notary, 2)
    assert not returned(notary, attempt), "nothing came after it"
    notary.sum(3)
    assert returned(notary, attempt)


def test_too_few_went_on_without_it() -> None:
    """Of four, two that are honest make a quorum of three impossible; one does not."""
    notary = Notary.of()
    attempt = attempt_at(notary, 1)
    notary.sum(2, signers=(1,), complete=False)
    assert not returned(notary, attempt)
    notary.sum(3, signers=(4,), complete=False)
    assert returned(notary, attempt), "it does not matter in which exchange they went on"


def test_corrupt_ones_may_have_signed_both() -> None:
    notary = Notary.of()
    protection = Protection(degree=3, threshold=3, corrupt=1, agreement="x25519")
    attempt = attempt_at(notary, 1, protection=protection)
    assert not returned(notary, attempt, present=(1, 2))
    assert returned(notary, attempt, present=(1, 2, 3))


def test_those_who_were_not_in_it_prove_nothing() -> None:
    notary = Notary.of(8)
    attempt = attempt_at(notary, 1)
    notary.sum(2, cohort=[4, 5, 6, 7], survivors=(4, 5, 6, 7), signers=(4, 5, 6))
    assert not returned(notary, attempt, present=(4, 5, 6, 7, 8))
    assert returned(notary, attempt, present=(3,))


def test_what_came_before_it_proves_nothing() -> None:
    notary = Notary.of()
    notary.sum(1)
    assert not returned(notary, attempt_at(notary, 2))


def test_one_that_is_in_the_chain_is_spent() -> None:
    notary = Notary.of()
    attempt = attempt_at(notary, 1)
    notary.sum(1)
    notary.sum(2)
    assert not returned(notary, attempt, present=(1, 2, 3, 4))


def test_one_that_was_never_complete_needs_a_quorum_that_kept_its_shares() -> None:
    notary = Notary.of()
    attempt = attempt_at(notary, 1)
    notary.sum(1, signers=(1, 2), complete=False)
    assert not returned(notary, attempt), "its own signatures say that they may have gone on with it"
    notary.sum(2)
    assert returned(notary, attempt)


def test_on_the_ring_nothing_is_known_of_the_shares_of_one_that_was_signed() -> None:
    notary = Notary.of()
    attempt = attempt_at(notary, 1).model_copy(update={"full_graph": False})
    assert returned(notary, attempt, present=(1, 2, 3))
    notary.sum(1, signers=(1, 2), complete=False)
    notary.sum(2)
    assert not returned(notary, attempt, present=(1, 2, 3, 4))


@pytest.mark.parametrize("known", [True, False])
def test_what_is_older_than_the_copy_stays_spent(known: bool) -> None:
    notary = Notary.of()
    attempt = attempt_at(notary, 1)
    notary.sum(2)
    anchor = "" if known else notary.head
    notary.sum(3)
    assert returned(notary, attempt, anchor=anchor) == known
