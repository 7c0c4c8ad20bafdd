"""Groups of one draw are open at the same time: their records come in any order, and nothing else between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.records import Notary

from fedcore.errors import ProtocolViolation
from fedcore.federation.transcript import TRANSCRIPT_GAP, Chain, SignedRecord, keys_of
from fedcore.wire.tasks import Group, GroupSpec
from server_app.storage.store import Store
from server_app.storage.transcript_tables import record_completed, record_opened
from tests.support.raising import raises

CUT = GroupSpec(groups=2, least=2)


def of_draw(number: int, draw: str = "aa") -> dict[str, Any]:
    return {"cut": CUT, "group": Group(draw=draw * 32, exchange=2, places="bb" * 32, number=number, of=3)}


def chain_of(notary: Notary) -> Chain:
    chain = Chain()
    for signed in notary.records:
        chain.extend(signed, keys_of([notary.roster]))
    return chain


def test_what_comes_after_a_draw_binds_all_that_came_of_it() -> None:
    notary = Notary.of()
    notary.sum(1)
    opened = notary.head
    heads = []
    for number in (1, 2, 3):
        notary.sum(2 + number, previous=opened, complete=number != 2, **of_draw(number))
        heads.append(notary.head)
    notary.sum(9)
    chain = chain_of(notary)
    assert chain.head == notary.head
    assert len({opened, *heads}) == 4
    assert chain.links[-1].previous == heads[-1], "not of the last group alone"
    assert [link.exchange for link in chain.after(heads[0]) or []] == [4, 5, 9]


def test_a_retry_of_a_group_binds_the_records_before_it() -> None:
    notary = Notary.of()
    notary.sum(1)
    opened = notary.head
    notary.sum(3, previous=opened, complete=False, **of_draw(1))
    failed = notary.head
    notary.sum(4, previous=opened, **of_draw(2))
    notary.sum(5, previous=failed, **of_draw(1))
    assert chain_of(notary).head == notary.head


@pytest.mark.parametrize(
    "between",
    [{}, of_draw(2, "cc")],
    ids=["another exchange", "a group of another draw"],
)
def test_nothing_else_may_stand_between_a_group_and_the_head_that_it_names(between: dict[str, Any]) -> None:
    notary = Notary.of()
    notary.sum(1)
    opened = notary.head
    notary.sum(3, previous=opened, **of_draw(1))
    notary.sum(4, **between)
    notary.sum(5, previous=opened, **of_draw(2))
    with raises(ProtocolViolation, check="transcript-gap", numbers=(5,)) as caught:
        chain_of(notary)
    assert caught.value.check == TRANSCRIPT_GAP


def test_an_exchange_that_is_no_group_names_the_head() -> None:
    notary = Notary.of()
    notary.sum(1)
    opened = notary.head
    notary.sum(2, previous=opened, **of_draw(1))
    notary.sum(3, previous=opened)
    with raises(ProtocolViolation, check="transcript-gap", numbers=(3,)):
        chain_of(notary)


async def test_the_server_gives_places_in_the_order_in_which_exchanges_are_closed(tmp_path: Path) -> None:
    notary = Notary.of()
    first = notary.sum(1)
    opened = notary.head
    two = notary.sum(4, previous=opened, **of_draw(2))
    failed = notary.sum(3, previous=opened, signers=(), complete=False, **of_draw(1))
    retried = notary.sum(5, **of_draw(1))
    store = await Store.open(tmp_path / "state.sqlite")

    async def open_record(signed: SignedRecord) -> None:
        await store.database.write(record_opened(signed.record, signed.record.outcome(signed.record.announced())))

    async def complete(signed: SignedRecord) -> None:
        outcome = signed.record.outcome(signed.record.announced())
        await store.database.write(record_completed(outcome, signed.signatures))

    await open_record(first)
    await complete(first)
    assert await store.last_record() == opened
    await open_record(failed)
    await open_record(two)
    assert await store.last_record(led=[("run", 3), ("run", 4)]) == opened, "whatever is led stays open"
    await complete(two)
    before = await store.last_record(led=[("run", 4)])
    assert before == retried.record.task["previous"]
    await open_record(retried)
    await complete(retried)
    page = await store.records_after("")
    assert page is not None
    assert page.records == notary.records
    assert await store.last_record() == notary.head
    later = await store.records_after(before)
    assert later is not None
    assert later.records == [retried]
    await store.close()
