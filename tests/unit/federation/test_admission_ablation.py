"""Attacks of the worlds `sums` and `groups` in proofs/maude, told to real admission.

The check stops each of them, and without it all clients agree to sums that the table in proofs/ablation.py says break
a promise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.draws import answers, draw_task, group_tasks
from support.records import Notary, make_task

from fedcore.errors import ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission.draws import answer_draw, check_draw
from fedcore.federation.admission.releases import agree, check_releases
from fedcore.federation.admission.simulated import MemoryHistory, SimulatedMember
from fedcore.federation.transcript import Chain, SignedRecord, keys_of
from fedcore.run.groups import MOST_DRAWS, cut_ring, make_ticket
from fedcore.run.settings import JobSettings
from fedcore.wire.tasks import Buffer, DrawTicket, Task, Version
from tests.support.ablation_admission import (
    Removal,
    with_any_draw,
    with_any_number,
    without_reason,
    without_release_check,
    without_signatures,
)

POLICY = Policy(min_cohort=3, min_threshold=3)
BUFFERED = JobSettings(asynchrony="buffered").for_clients()
GROUPED = JobSettings(groups=2)
CLIENTS = range(1, 9)
CORRUPT = (7, 8)


# One question about a model, one sum of an update


def _open(*sums: tuple[Sequence[int], dict[str, Any]]) -> set[str]:
    """Ask for these sums, each over its survivors, one after the other; by which checks clients refuse."""
    notary, chain, refused = Notary.of(), Chain(), set()
    histories = {client: MemoryHistory() for client in (1, 2, 3, 4)}
    for exchange, (survivors, changes) in enumerate(sums, start=1):
        task = make_task(exchange, previous=notary.head, **changes)
        for client in survivors:
            try:
                check_releases(task, POLICY, histories[client])
                agree(task, task.encoding, survivors, POLICY, histories[client], chain)
            except ProtocolViolation as refusal:
                refused.add(refusal.check)
        if refused:
            break
        signed = notary.sum(exchange, survivors=survivors, signers=survivors, **changes)
        chain.extend(SignedRecord.model_validate_json(signed.model_dump_json()), keys_of([notary.roster]))
    return refused


def _from_versions(*starts: int) -> dict[str, Any]:
    """A buffered sum of updates from these versions, of clients 1, 2, ..."""
    named = [Version(number=start, sha256=f"{start:064x}") for start in starts]
    return {"buffer": Buffer(newest=max(starts), starts=named), "settings": BUFFERED}


SUMS: dict[str, tuple[tuple[tuple[Sequence[int], dict[str, Any]], ...], Removal]] = {
    "differencing": ((((1, 2, 3, 4), {}), ((1, 2, 3), {})), without_release_check("check_smallest_group")),
    "other-question": (
        (((1, 2, 3, 4), {}), ((1, 2, 3, 4), {"configs": {"config": {"x": 2.0}}})),
        without_release_check("_check_question"),
    ),
    "update-reused": (
        (((1, 2, 3, 4), _from_versions(0, 0, 0, 0)), ((1, 2, 3), _from_versions(0, 0, 0, 0))),
        without_release_check("_check_once"),
    ),
}
"""Two sums that together tell of client 4 or of what one client answers differently, and the check's removal."""


@pytest.mark.parametrize("check", SUMS)
def test_two_sums_that_differ_in_one_client_are_refused(check: str) -> None:
    sums, _ = SUMS[check]
    assert _open(*sums) == {check}


@pytest.mark.parametrize("check", SUMS)
def test_without_the_check_all_agree_to_both(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sums, remove = SUMS[check]
    remove(monkeypatch)
    assert not _open(*sums)


# Groups


@pytest.fixture(scope="module")
def notary() -> Notary:
    return Notary.of(len(CLIENTS))


class Drawn:
    """A draw that all clients have answered; the corrupt ones answer as they like, and again."""

    def __init__(self, notary: Notary) -> None:
        self.notary = notary
        self.draw = draw_task(notary, groups=2, least=4)
        self.ledgers = {client: MemoryHistory() for client in CLIENTS}
        self.places = answers(notary, self.draw, CORRUPT)
        for client in CLIENTS:
            if client not in CORRUPT:
                given = answer_draw(self.draw, self.owner(client), self.ledgers[client], notary.keys[client])
                self.places.append(DrawTicket(client_id=client, nonce=given.nonce, signature=given.signature))
        self.places.sort(key=lambda place: place.client_id)

    def owner(self, client: int) -> SimulatedMember:
        """Whose policy is that of all."""
        return SimulatedMember(client_id=client, roster=self.notary.roster, policy=POLICY)

    def refused(self, task: Task) -> set[str]:
        """For which reasons honest clients of its cohort do not take part."""
        reasons = set()
        for client in set(task.cohort) - set(CORRUPT):
            try:
                check_draw(task, GROUPED, self.owner(client), self.ledgers[client])
            except ProtocolViolation as refusal:
                reasons.add(refusal.reason or refusal.check)
        return reasons

    def group_of(self, client: int, places: Sequence[DrawTicket]) -> Task:
        """The task of its group, by these answers."""
        return next(task for task in group_tasks(self.draw, places) if client in task.cohort)

    def chosen(self, members: Sequence[int]) -> Task:
        """The group of client 1, but for another cohort."""
        return self.group_of(1, self.places).model_copy(update={"cohort": sorted(members)})

    def strangers(self) -> tuple[int, int]:
        """Client 1, and an honest client that is in another group."""
        mate = set(self.group_of(1, self.places).cohort)
        return 1, next(client for client in CLIENTS if client not in mate and client not in CORRUPT)


def _no_draw(drawn: Drawn) -> Task:
    return drawn.chosen((*drawn.strangers(), *CORRUPT)).model_copy(update={"places": None})


def _few_answers(drawn: Drawn) -> Task:
    wanted = (*drawn.strangers(), *CORRUPT)
    return drawn.group_of(1, [place for place in drawn.places if place.client_id in wanted])


def _made_up(drawn: Drawn) -> Task:
    """Answers in others' names, and new ones of the corrupt, until those are together that the server wants."""
    wanted = sorted((*drawn.strangers(), *CORRUPT))
    own = {place.client_id: place for place in drawn.places if place.client_id in wanted[:2]}
    for seed in range(100_000):
        made_up = [
            own.get(i)
            or DrawTicket(client_id=i, nonce=hashlib.sha256(b"%d %d" % (seed, i)).digest(), signature=bytes(64))
            for i in CLIENTS
        ]
        if wanted in cut_ring(drawn.draw.digest(), made_up, drawn.draw.cut):
            return drawn.group_of(
                1, [_signed(drawn, place) if place.client_id in CORRUPT else place for place in made_up]
            )
    raise AssertionError


def _signed(drawn: Drawn, place: DrawTicket) -> DrawTicket:
    ticket = make_ticket(
        drawn.notary.roster.federation,
        drawn.draw.digest(),
        drawn.notary.keys[place.client_id],
        randomness=lambda _: place.nonce,
    )
    return DrawTicket(client_id=place.client_id, nonce=ticket.nonce, signature=ticket.signature)


def _strangers(drawn: Drawn) -> Task:
    return drawn.chosen((*drawn.strangers(), *CORRUPT))


def _too_small(drawn: Drawn) -> Task:
    return drawn.chosen(drawn.group_of(1, drawn.places).cohort[:3])


GROUPS: dict[str, tuple[Callable[[Drawn], Task], Removal]] = {
    "no-draw": (_no_draw, without_reason("no-draw")),
    "too-few-answers": (_few_answers, with_any_number),
    "unsigned": (_made_up, without_signatures),
    "stranger": (_strangers, without_reason("stranger")),
    "too-small": (_too_small, without_reason("too-small")),
}
"""Reason of `wrong-group` -> the task of a group that no draw made, and the check's removal."""


@pytest.mark.parametrize("reason", GROUPS)
def test_a_group_that_no_draw_made_is_refused(reason: str, notary: Notary) -> None:
    made, _ = GROUPS[reason]
    drawn = Drawn(notary)
    assert drawn.refused(made(drawn)) == {reason}


@pytest.mark.parametrize("reason", GROUPS)
def test_without_the_check_all_take_part(reason: str, notary: Notary, monkeypatch: pytest.MonkeyPatch) -> None:
    made, remove = GROUPS[reason]
    remove(monkeypatch)
    drawn = Drawn(notary)
    task = made(drawn)
    assert not drawn.refused(task)
    assert len(task.cohort) < drawn.draw.cut.least or set(drawn.strangers()) <= set(task.cohort)


def _draw_again(notary: Notary) -> set[str]:
    """One draw more than a client answers without a sum."""
    ledger, owner = MemoryHistory(), SimulatedMember(client_id=1, roster=notary.roster, policy=POLICY)
    for exchange in range(1, MOST_DRAWS + 2):
        draw = draw_task(notary, groups=2, least=4, exchange=exchange)
        try:
            check_draw(draw, GROUPED, owner, ledger)
        except ProtocolViolation as refusal:
            return {refusal.check}
        answer_draw(draw, owner, ledger, notary.keys[1])
    return set()


def test_a_draw_too_many_is_refused(notary: Notary) -> None:
    assert _draw_again(notary) == {"too-many-draws"}


def test_without_the_check_it_is_answered(notary: Notary, monkeypatch: pytest.MonkeyPatch) -> None:
    with_any_draw(monkeypatch)
    assert not _draw_again(notary)
