"""One of four cheats: the run goes on without it, it alone is named, and never an honest client."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import pytest
from support.hostile import accuse, advertise_as
from support.members import Failure, Member, digest_of
from support.serverside import ScriptedApp, Site, events_of

from fedcore.errors import ProtocolViolation
from fedcore.secagg import KeyShares
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from fedcore.wire import secagg_codec
from fedcore.wire.events import RunOut
from fedcore.wire.secagg import DeliveryOut, SignaturesOut, UnmaskIn
from fedcore.wire.uploads import ManifestIn
from server_app.runs.app.messages import ExchangeRefused, Nodes, Replies
from tests.support.raising import raises

ALL = [1, 2, 3, 4]
CHEAT = 2


def _flipped(raw: bytes, place: int) -> bytes:
    place %= len(raw)
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


def _failure(field: str, place: int, receivers: set[int]) -> Callable[[KeyShares], KeyShares]:
    """What is dealt, with one byte of what each of some receivers gets altered."""

    def change(honest: KeyShares) -> KeyShares:
        entries = {i: _flipped(raw, place) if i in receivers else raw for i, raw in getattr(honest, field).items()}
        changes: dict[str, Any] = {field: entries}
        return dataclasses.replace(honest, **changes)

    return change


async def _honestly(member: Member) -> None:
    """A whole exchange; it leaves with a complaint where it was cheated, and is told where the exchange is over."""
    with contextlib.suppress(ProtocolViolation, Failure):
        await member.secure()


async def _dealing(member: Member, change: Callable[[KeyShares], KeyShares], *, signs: bool = True) -> None:
    """As a cheat that deals wrongly and does all the rest right."""
    with contextlib.suppress(ProtocolViolation, Failure):
        await member.advertise()
        await member.share_falsely(change, signs=signs)
        for step in (member.receive, member.upload, member.sign, member.unmask):
            await step()


async def _retried(here: Site) -> None:
    """The next attempt, in which all but the cheat are asked."""
    others = [member for member in here.members.values() if member.id != CHEAT]
    await asyncio.gather(*(member.enter() for member in others))
    assert others[0].cohort == [1, 3, 4]
    await asyncio.gather(*(member.secure() for member in others))


async def _finished(here: Site, run: str, app: ScriptedApp, reason: str) -> RunOut:
    """The run's end, with its events: the cheat is named once, and asked no more; nobody else is named."""
    nodes = await app.nodes()
    assert isinstance(nodes, Nodes)
    assert nodes.nodes == [1, 3, 4]
    ended = await here.finish(run, app)
    assert [(event["client"], event["reason"]) for event in events_of(ended, "blamed")] == [("client-2", reason)]
    for failed in events_of(ended, "exchange-failed"):
        assert failed["retry"]
        assert f"client-2: {reason}" in failed["reason"]
        assert not any(f"client-{other}" in failed["reason"] for other in (1, 3, 4))
    return ended


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(_failure("shares", -1, {1, 3, 4}), "sealed-garbage", id="garbage for everybody"),
        pytest.param(_failure("shares", -1, {3}), "sealed-garbage", id="garbage for one"),
        pytest.param(_failure("pair_secrets", -1, {1, 3, 4}), "sealed-garbage", id="garbage for pair secrets"),
        pytest.param(_failure("shares", 0, {1, 3, 4}), "inconsistent-dealing", id="others than it committed to"),
        pytest.param(
            lambda honest: dataclasses.replace(honest, commitment=bytes(32)), "inconsistent-dealing", id="another b"
        ),
    ],
)
async def test_a_cheating_dealer_costs_one_attempt_and_is_left_out(
    here: Site, model: ModelState, change: Callable[[KeyShares], KeyShares], reason: str
) -> None:
    """Even where there is one attempt only: one that somebody is blamed for does not count."""
    run, app = await here.begin({"max-attempts": 1})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(_dealing(member, change) if member.id == CHEAT else _honestly(member) for member in members))
    await _retried(here)
    assert isinstance(await asked, Replies)
    ended = await _finished(here, run, app, reason)
    assert [event["survivors"] for event in events_of(ended, "exchange-done")] == [["client-1", "client-3", "client-4"]]
    assert len(events_of(ended, "exchange-failed")) == 1


async def test_a_signature_that_is_none_is_its_dealers_fault(here: Site, model: ModelState) -> None:
    """Those who could not open their shares have nothing to accuse it with, and need not."""

    def change(honest: KeyShares) -> KeyShares:
        return _failure("shares", -1, {1, 3, 4})(honest)

    run, app = await here.begin({"max-attempts": 1})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = {member.id: member for member in await here.enter_all()}

    async def refuse(member: Member) -> None:
        with contextlib.suppress(ProtocolViolation, Failure):
            await member.secure(until="receive")
            await member.receive()
            raise AssertionError("what could not be opened was taken")

    honest = [refuse(member) for member in members.values() if member.id != CHEAT]
    await asyncio.gather(_dealing(members[CHEAT], change, signs=False), *honest)
    assert here.application.queue.exchange is not None
    assert here.application.queue.exchange.blamed == {CHEAT: "unsigned-dealing"}
    for member in list(members.values())[:1]:
        with contextlib.suppress(Failure):
            await member.withdraw()
    await _retried(here)
    assert isinstance(await asked, Replies)
    await _finished(here, run, app, "unsigned-dealing")


async def test_a_false_complaint_convicts_its_sender_and_the_others_go_on(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = {member.id: member for member in await here.enter_all()}

    async def complain() -> None:
        member = members[CHEAT]
        await member.advertise()
        await member.share()
        answer = DeliveryOut.model_validate_json(await member.get("key-shares"))
        assert member.session is not None
        said = accuse(member.session, secagg_codec.delivery_from_wire(answer, member.cohort), 3)
        await member.leave_with(secagg_codec.complaint_to_wire(said))

    await asyncio.gather(complain(), *(members[i].secure() for i in (1, 3, 4)))
    assert isinstance(await asked, Replies)
    ended = await _finished(here, run, app, "false-complaint")
    assert [event["survivors"] for event in events_of(ended, "exchange-done")] == [["client-1", "client-3", "client-4"]]


async def _unmask_with(member: Member, change: Callable[[UnmaskIn], UnmaskIn]) -> None:
    answer = SignaturesOut.model_validate_json(await member.get("consistency"))
    assert member.session is not None
    made = secagg_codec.unmask_to_wire(member.session.unmask(secagg_codec.signatures_from_wire(answer)))
    with contextlib.suppress(Failure):
        await member.put("unmask", change(made))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            lambda made: made.model_copy(update={"self_shares": _flipped(made.self_shares, -1)}),
            "wrong-share",
            id="a wrong share",
        ),
        pytest.param(
            lambda made: made.model_copy(update={"self_shares": b"\xff" * len(made.self_shares)}),
            "malformed-message",
            id="no shares at all",
        ),
    ],
)
async def test_who_spoils_the_last_step_costs_nothing_and_is_left_out(
    here: Site, model: ModelState, change: Callable[[UnmaskIn], UnmaskIn], reason: str
) -> None:
    """Three good shares of four suffice; the sum of all four stands."""
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure(until="unmask") for member in members))
    await asyncio.gather(
        *(_unmask_with(member, change) if member.id == CHEAT else member.unmask() for member in members)
    )
    assert isinstance(await asked, Replies)
    ended = await _finished(here, run, app, reason)
    assert [len(event["survivors"]) for event in events_of(ended, "exchange-done")] == [4]
    assert events_of(ended, "exchange-failed") == []


async def test_one_key_for_both_purposes_stops_nobody_else(here: Site, model: ModelState) -> None:
    """Every client refuses a list with a key twice; the server does not let it come to that."""
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = {member.id: member for member in await here.enter_all()}

    async def copy() -> None:
        session = members[CHEAT].session
        assert session is not None
        honest = session.advertise()
        body = secagg_codec.advertisement_to_wire(advertise_as(session, honest.c_public, honest.c_public))
        with raises(Failure, check="duplicate-key"):
            await members[CHEAT].put("advertisement", body)

    await asyncio.gather(copy(), *(members[i].secure() for i in (1, 3, 4)))
    assert isinstance(await asked, Replies)
    await _finished(here, run, app, "malformed-message")


async def test_a_sum_that_none_can_have_made_names_nobody(here: Site, model: ModelState) -> None:
    """Any of the four can have sent it, for all that the sum tells."""
    run, app = await here.begin({"max-attempts": 1})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure(until="upload") for member in members))

    async def garbage(member: Member) -> None:
        honest, _ = member.vector()
        body = os.urandom(len(honest))
        await member.send(body)
        await member.put("manifest", ManifestIn(digest=digest_of(body), size=len(body)))

    await asyncio.gather(*(garbage(member) if member.id == CHEAT else member.upload() for member in members))
    await asyncio.gather(*(member.sign() for member in members))
    await asyncio.gather(*(member.unmask() for member in members))
    answer = await asked
    assert isinstance(answer, ExchangeRefused)
    assert "the sum cannot tell which one" in answer.reason
    assert "client-" not in answer.reason
    app.fail(answer.reason)
    assert events_of(await here.follow(run), "blamed") == []


async def test_a_run_that_is_too_small_without_the_cheat_ends_at_once_and_names_it(
    here: Site, model: ModelState
) -> None:
    _, app = await here.begin({"quorum": 4})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    change = _failure("shares", -1, {3})
    await asyncio.gather(*(_dealing(member, change) if member.id == CHEAT else _honestly(member) for member in members))
    answer = await asked
    assert isinstance(answer, ExchangeRefused)
    excluded = "excluded for protocol violations: client-2: sealed-garbage"
    assert answer.reason == f"4 clients are needed, 3 are connected; {excluded}"


async def test_complaints_that_cannot_be(here: Site, model: ModelState) -> None:
    """Before anything was dealt, and where nothing is sealed."""
    _, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    said = secagg_codec.ComplaintIn(accused=3, part="shares", shared=bytes(32), proof=bytes(64), mlkem_seed=b"")
    for request in (members[0].leave_with(said), members[0].ask("GET", members[0].at("key-shares/2"))):
        with raises(Failure, check="out-of-order"):
            await request
    exchange: Any = here.application.queue.exchange
    assert exchange.blamed == {}
    await end(asked)


async def test_a_plain_exchange_knows_no_complaints(here: Site, model: ModelState) -> None:
    _, app = await here.begin({"aggregation": "plain"})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    said = secagg_codec.ComplaintIn(accused=3, part="shares", shared=bytes(32), proof=bytes(64), mlkem_seed=b"")
    with raises(Failure, kind="malformed"):
        await members[0].leave_with(said)
    await end(asked)
