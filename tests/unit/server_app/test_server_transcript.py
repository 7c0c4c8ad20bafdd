"""The transcript at the server: whatever a client may have signed is in it, and each task names what came before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.members import Failure, withdraw_all
from support.records import Notary
from support.serverside import ScriptedApp, Site, events_of

from fedcore.federation.transcript import Chain, SignedRecord, TranscriptOut, keys_of, record_hash
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from server_app.runs.app.messages import ExchangeRefused, Replies
from server_app.storage.database import Change
from server_app.storage.store import Store
from server_app.storage.transcript_tables import record_completed, record_opened
from tests.support.raising import raises

ALL = [1, 2, 3, 4]


async def exchange(here: Site, app: ScriptedApp, model: ModelState, until: str = "") -> object:
    """One exchange; with `until` all leave it before that step."""
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure(until=until) for member in members))
    if until:
        await withdraw_all(members)
    return await asked


async def records(here: Site, after: str = "") -> list[SignedRecord]:
    content = (await here.operator("GET", f"/v1/operator/transcript?after={after}")).content
    return TranscriptOut.model_validate_json(content).records


async def test_every_exchange_names_the_one_before(here: Site, model: ModelState) -> None:
    _, app = await here.begin({"key-agreement": "x25519"})
    for _ in range(3):
        assert isinstance(await exchange(here, app, model), Replies)
    listed = await records(here)
    chain = Chain()
    for signed in listed:
        chain.extend(signed, keys_of([here.services.roster.current]))
    assert [(link.exchange, link.complete) for link in chain.links] == [(1, True), (2, True), (3, True)]
    assert len(chain.links[0].signers) == 3, "as many as a quorum"
    assert await records(here, chain.links[1].hash) == listed[2:]
    for member in here.members.values():
        answer = await member.ask("GET", f"/v1/transcript?after={chain.links[0].hash}")
        assert TranscriptOut.model_validate_json(answer.content).records == listed[1:]


@pytest.mark.parametrize(("until", "kept"), [("upload", None), ("sign", False), ("unmask", True)])
async def test_an_exchange_that_failed_is_kept_once_its_survivors_were_named(
    here: Site, model: ModelState, until: str, kept: bool | None
) -> None:
    """A client may have signed them, whether or not that has arrived; complete only if others may have been told."""
    run, app = await here.begin({"max-attempts": 1})
    assert isinstance(await exchange(here, app, model, until), ExchangeRefused)
    assert isinstance(await exchange(here, app, model), Replies)
    found = {signed.record.task["exchange"]: signed.complete for signed in await records(here)}
    assert found == ({2: True} if kept is None else {1: kept, 2: True})
    chain = Chain()
    for signed in await records(here):
        chain.extend(signed, keys_of([here.services.roster.current]))
    assert len(events_of(await here.finish(run, app, model), "exchange")) == 2


async def test_a_record_that_is_open_is_shown_to_nobody(here: Site, model: ModelState) -> None:
    _, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure(until="sign") for member in members))
    await members[0].sign()
    assert await records(here) == []
    await end(asked)


@pytest.mark.parametrize(("after", "problem"), [("00" * 32, "not-found"), ("x", "malformed")])
async def test_a_hash_that_the_transcript_does_not_contain(here: Site, after: str, problem: str) -> None:
    with raises(Failure, kind=problem):
        await here.members[1].ask("GET", f"/v1/transcript?after={after}")


async def write(store: Store, *changes: Change) -> None:
    """What goes into the transactions that close stages."""
    for change in changes:
        await store.database.write(change)


async def test_a_server_that_was_killed_knows_what_may_have_been_signed(tmp_path: Path) -> None:
    notary = Notary.of()
    first, second = notary.sum(1), notary.sum(2, signers=(), complete=False)
    outcomes = [signed.record.outcome(signed.record.announced()) for signed in (first, second)]
    store = await Store.open(tmp_path / "state.sqlite")
    await write(store, record_opened(first.record, outcomes[0]))
    await write(store, record_completed(outcomes[0], first.signatures))
    await write(store, record_opened(second.record, outcomes[1]))
    await store.close()
    again = await Store.open(tmp_path / "state.sqlite")
    assert (await again.records_after("")).records == [first]
    assert await again.last_record() == notary.head
    assert (await again.records_after("")).records == [first, second]
    await again.close()


async def test_a_long_transcript_comes_in_pages(tmp_path: Path) -> None:
    notary = Notary.of()
    store = await Store.open(tmp_path / "state.sqlite")
    for exchange_number in range(1, 41):
        signed = notary.sum(exchange_number)
        outcome = signed.record.outcome(signed.record.announced())
        await write(store, record_opened(signed.record, outcome), record_completed(outcome, signed.signatures))
    page = await store.records_after("")
    assert (len(page.records), page.more) == (32, True)
    page = await store.records_after(notary.records[32].record.task["previous"])
    assert (page.records, page.more) == (notary.records[32:], False)
    await store.close()


async def test_the_heads_of_a_chain_are_known_and_no_others(tmp_path: Path) -> None:
    notary, heads = Notary.of(), []
    store = await Store.open(tmp_path / "state.sqlite")
    for number in range(1, 4):
        signed = notary.sum(number)
        outcome = signed.record.outcome(signed.record.announced())
        await write(store, record_opened(signed.record, outcome), record_completed(outcome, signed.signatures))
        heads.append(notary.head)
    assert [await store.has_head(head) for head in heads] == [True] * 3
    notary.sum(4)
    assert not await store.has_head(notary.head), "a sum that this server never made"
    await store.close()


async def test_a_signed_record_is_known_as_what_it_may_become(tmp_path: Path) -> None:
    """A client names it as it joins: in an older state of the server it is missing, or has become another one."""
    notary = Notary.of()
    store = await Store.open(tmp_path / "state.sqlite")
    for number, complete in ((1, True), (2, False)):
        signed = notary.sum(number, complete=complete)
        outcome = signed.record.outcome(signed.record.announced())
        names = [record_hash(outcome, complete=one) for one in (True, False)]
        without_quorum, with_quorum = {names[0]: names[1]}, {names[0]: ""}
        assert not await store.has_signed(without_quorum), "before it is opened"
        await write(store, record_opened(signed.record, outcome))
        assert await store.has_signed(without_quorum)
        assert await store.has_signed(with_quorum), "a group's has no place before those of the others"
        if complete:
            await write(store, record_completed(outcome, signed.signatures))
        await store.last_record()
        assert await store.has_signed(without_quorum)
        assert await store.has_signed(with_quorum) == complete
    await store.close()
