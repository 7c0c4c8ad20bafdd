"""A training that is cut into groups: a draw, then a sum for each group, all at the same time."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from support.members import Failure, Member
from support.serverside import ScriptedApp, Site, events_of, site, until

from fedcore.errors import ProtocolViolation
from fedcore.federation import FederationFolder, Policy, provision
from fedcore.federation.transcript import Chain, TranscriptOut, keys_of, next_head
from fedcore.run.groups import GroupAssignmentRecord, check_group, make_ticket
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from fedcore.wire.operator import RunClientsOut
from fedcore.wire.tasks import DrawTicketIn
from fedcore.wire.watch import MarksOut
from server_app.runs.app.messages import ExchangeRefused, Replies
from server_app.runs.app.process import AppKilled
from tests.support.raising import raises

CLIENTS = 6
ALL = list(range(1, CLIENTS + 1))
GROUPED = {"groups": 2, "max-corrupt": 0.0, "min-clients": CLIENTS, "key-agreement": "x25519"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return provision(
        tmp_path_factory.mktemp("grouped-federation") / "fed",
        name="testing",
        clients=CLIENTS,
        now=datetime.now(UTC),
        hosts=["127.0.0.1"],
        policy=Policy.own(CLIENTS, min_cohort=3, min_threshold=2),
    )


@pytest.fixture
async def here(federation: FederationFolder, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(federation, tmp_path) as made:
        for member in made.members.values():
            member.local.by = float(member.id)
        yield made


@pytest.fixture
def model() -> ModelState:
    return ModelState.from_arrays({"weight": np.linspace(-1, 1, 600).astype(np.float32)})


async def draw(members: list[Member]) -> None:
    await asyncio.gather(*(member.draw() for member in members))


async def enter(members: list[Member]) -> dict[int, list[Member]]:
    """Everybody takes the task of its group; the members of each."""
    await asyncio.gather(*(member.enter() for member in members))
    groups: dict[int, list[Member]] = {}
    for member in members:
        assert member.task is not None
        assert member.task.group is not None
        groups.setdefault(member.task.group.number, []).append(member)
    return groups


def check(member: Member, drawn: GroupAssignmentRecord) -> None:
    """As the member's agent does."""
    assert member.task is not None
    keys = member.kit.roster.keys
    check_group(member.task, drawn, federation="testing", client_id=member.id, keys=keys)


def deltas(answer: object, model: ModelState) -> list[float]:
    """By how much each reply differs from the model."""
    assert isinstance(answer, Replies), answer
    return [float(np.mean(reply.model()["weight"] - model["weight"])) for reply in answer.replies]  # type: ignore[index]


async def chain_of(here: Site) -> Chain:
    chain = Chain()
    page = TranscriptOut.model_validate_json((await here.operator("GET", "/v1/operator/transcript")).content)
    for signed in page.records:
        chain.extend(signed, keys_of([here.services.roster.current]))
    return chain


async def groups_shown(here: Site, run: str) -> int:
    """What the server says of an exchange that is open."""

    async def clients() -> RunClientsOut:
        return RunClientsOut.model_validate_json((await here.operator("GET", f"/v1/runs/{run}/clients")).content)

    while not (found := await clients()).exchange:  # noqa: ASYNC110 - there is no event of it
        await asyncio.sleep(0.01)
    assert len(found.clients) == CLIENTS
    return found.groups


async def one_round(here: Site, app: ScriptedApp, model: ModelState) -> tuple[Replies, dict[int, list[Member]]]:
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    await draw(members)
    groups = await enter(members)
    await asyncio.gather(*(member.secure() for member in members))
    answer = await asked
    assert isinstance(answer, Replies), answer
    return answer, groups


async def test_the_strategy_gets_the_mean_of_each_group(here: Site, model: ModelState) -> None:
    run, app = await here.begin(GROUPED)
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    assert await groups_shown(here, run) == 2, "while they are drawn"
    await draw(members)
    drawn = {}
    for member in members:
        assert member.task is not None
        assert member.place is not None
        drawn[member.id] = GroupAssignmentRecord.of(member.task, member.place)
    groups = await enter(members)
    assert Counter(map(len, groups.values())) == {3: 2}
    assert len({member.task.exchange for member in members if member.task}) == 2, "both are open at the same time"
    for member in members:
        check(member, drawn[member.id])
    shown = MarksOut.model_validate_json((await here.operator("GET", f"/v1/runs/{run}/marks")).content)
    assert shown.exchanges == [1], "the groups are one exchange to whoever looks on"
    assert await groups_shown(here, run) == 2, "to a page as well that was opened after the draw"
    await asyncio.gather(*(member.secure() for member in members))
    answer = await asked
    expected = [np.mean([member.local.by for member in groups[number]]) for number in (1, 2)]
    assert deltas(answer, model) == pytest.approx(expected, abs=0.01)
    ended = await here.finish(run, app, model)
    (started,), (done,) = events_of(ended, "exchange"), events_of(ended, "exchange-done")
    assert (started["groups"], done["groups"], done["examples"], len(done["survivors"])) == (2, 2, 60, 6)
    assert sorted(event["group"] for event in events_of(ended, "group")) == [1, 2]
    assert sorted(event["group"] for event in events_of(ended, "group-ended")) == [1, 2]
    assert ended.rounds == 1


async def test_groups_are_drawn_anew_and_the_transcript_holds_all_of_them(here: Site, model: ModelState) -> None:
    run, app = await here.begin(GROUPED)
    for _ in range(2):
        await one_round(here, app, model)
        asked = asyncio.create_task(app.exchange(model, ALL, message_type="evaluate"))
        await asyncio.gather(*(member.enter() for member in here.members.values()))
        await asyncio.gather(*(member.secure() for member in here.members.values()))
        answer = await asked
        assert isinstance(answer, Replies)
        assert len(answer.replies) == 1, "an evaluation is one sum"
    chain = await chain_of(here)
    assert [bool(link.draw) for link in chain.links] == [True, True, False, True, True, False]
    assert len({link.draw for link in chain.links}) == 3
    head = ""
    for link in chain.links[:2]:
        head = next_head(head, link.previous, link.hash)
    for member in here.members.values():
        answer_ = await member.ask("GET", f"/v1/transcript?after={head}")
        assert len(TranscriptOut.model_validate_json(answer_.content).records) == 4
    assert (await here.finish(run, app, model)).rounds == 2


async def test_a_group_that_fails_gives_no_mean_and_the_others_go_on(here: Site, model: ModelState) -> None:
    run, app = await here.begin({**GROUPED, "min-groups": 1, "max-attempts": 2})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    await draw(members)
    groups = await enter(members)
    bad, good = groups[1], groups[2]
    finishing = asyncio.gather(*(member.secure() for member in good))
    await asyncio.gather(*(member.secure(until="sign") for member in bad))
    await bad[0].withdraw()
    await finishing
    # Its second attempt is opened after the record of the first, and of the other group.
    again = await enter(bad)
    assert again == {1: bad}
    await bad[0].withdraw()
    answer = await asked
    assert deltas(answer, model) == pytest.approx([np.mean([member.local.by for member in good])], abs=0.01)
    chain = await chain_of(here)
    assert sorted(link.complete for link in chain.links) == [False, True]
    ended = await here.finish(run, app, model)
    failed = [event for event in events_of(ended, "group-ended") if event["reason"]]
    assert [(event["group"], event["retry"]) for event in failed] == [(1, True), (1, False)]
    assert events_of(ended, "exchange-done")[0]["groups"] == 1


async def test_too_few_groups_are_a_failure_that_names_them(here: Site, model: ModelState) -> None:
    run, app = await here.begin({**GROUPED, "min-groups": 2, "max-attempts": 1})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    await draw(members)
    groups = await enter(members)
    await asyncio.gather(groups[1][0].withdraw(), *(member.secure() for member in groups[2]))
    answer = await asked
    assert isinstance(answer, ExchangeRefused)
    assert answer.reason.startswith("1 of 2 groups gave a sum, 2 are needed (min-groups). group 1: ")
    assert events_of(await here.finish(run, app, model), "exchange-failed")[0]["exchange"] == 1


async def test_a_draw_with_too_few_answers_is_tried_again(here: Site, model: ModelState) -> None:
    _, app = await here.begin(GROUPED)
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    await asyncio.gather(*(member.enter() for member in members))
    await members[0].withdraw()
    await draw(members)
    await enter(members)
    await asyncio.gather(*(member.secure() for member in members))
    assert isinstance(await asked, Replies)


async def test_an_answer_is_signed_for_this_draw_and_given_once(here: Site, model: ModelState) -> None:
    _, app = await here.begin(GROUPED)
    asked = asyncio.create_task(app.exchange(model, ALL))
    one, two = here.members[1], here.members[2]
    await asyncio.gather(one.enter(), two.enter())
    assert one.task is not None
    with raises(Failure, check="wrong-group", numbers=(1,)):
        await one.put("place", make_ticket("testing", bytes(32), one.kit.identity))
    place = make_ticket("testing", one.task.digest(), one.kit.identity)
    with raises(Failure, check="wrong-group", numbers=(2,)):
        await two.put("place", place)
    await one.put("place", place)
    await one.put("place", place)
    with raises(Failure, kind="conflict"):
        await one.put("place", make_ticket("testing", one.task.digest(), one.kit.identity))
    with raises(Failure, kind="not-found"):
        await one.ask("PUT", one.at("advertisement"), DrawTicketIn(nonce=bytes(32), signature=bytes(64)))
    await end(asked)


async def test_who_was_left_out_of_its_groups_answers_does_not_take_part(here: Site, model: ModelState) -> None:
    """What the server shows to a group is what the members' agents check; here nobody was left out."""
    _, app = await here.begin(GROUPED)
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    await draw(members)
    assert members[0].task is not None
    assert members[0].place is not None
    drawn = GroupAssignmentRecord.of(members[0].task, members[0].place)
    await enter(members)
    check(members[0], drawn)
    assert members[0].task.places is not None
    left_out = [place for place in members[0].task.places if place.client_id != members[0].id]
    members[0].task = members[0].task.model_copy(update={"places": left_out})
    with pytest.raises(ProtocolViolation, match="wrong-group"):
        check(members[0], drawn)
    await end(asked)


@pytest.mark.parametrize("killed", ["in the draw", "in the groups", "in one group, after the other"])
async def test_a_server_that_was_killed_goes_on_with_the_draw_and_with_every_group(
    federation: FederationFolder, tmp_path: Path, model: ModelState, killed: str
) -> None:
    async with site(federation, tmp_path) as first:
        run, app = await first.begin(GROUPED)
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = list(first.members.values())
        if killed == "in the draw":
            await draw(members[:3])
            await asyncio.gather(*(member.enter() for member in members[3:]))
        else:
            await draw(members)
            groups = await enter(members)
            await asyncio.gather(*(member.secure(until="sign") for member in groups[1]))
            last = "" if killed == "in one group, after the other" else "upload"
            await asyncio.gather(*(member.secure(until=last) for member in groups[2]))
            if not last:
                await until(lambda: len(first.application.queue.active_exchanges.open_of(run)) == 1)
                sums = tmp_path / "data" / "runs" / run / "exchanges" / str(groups[2][0].task.exchange) / "sums"
                await until(lambda: not sums.exists())  # they go just after its end
        # As after kill -9: nobody has the time to write down how things ended.
        await asyncio.to_thread(shutil.copytree, tmp_path / "data", tmp_path / "crashed")
        await end(asked)
    (tmp_path / "again").mkdir()
    (tmp_path / "crashed").rename(tmp_path / "again" / "data")
    async with site(federation, tmp_path / "again") as second:
        await until(lambda: bool(second.apps) and second.apps[-1].start is not None)
        app = second.apps[-1]
        for member in members:
            member.http = second.http
        asked = asyncio.create_task(app.exchange(model, ALL))
        led = 2 if killed == "in the groups" else 1
        await until(lambda: len(second.application.queue.active_exchanges.open_of(run)) == led)
        if killed == "in the draw":
            for member in members[3:]:
                assert member.task is not None
                await member.put("place", make_ticket("testing", member.task.digest(), member.kit.identity))
            await enter(members)
            await asyncio.gather(*(member.secure() for member in members))
        else:
            if last:
                await asyncio.gather(*(member.upload() for member in groups[2]))
                await asyncio.gather(*(member.sign() for member in groups[2]))
                await asyncio.gather(*(member.unmask() for member in groups[2]))
            await asyncio.gather(*(member.sign() for member in groups[1]))
            await asyncio.gather(*(member.unmask() for member in groups[1]))
        answer = await asked
        assert isinstance(answer, Replies), answer
        assert len(answer.replies) == 2
        assert all(link.complete for link in (await chain_of(second)).links)
        ended = await second.finish(run, app, model)
    assert ended.status == "finished"
    assert ended.rounds == 1
    assert len(events_of(ended, "exchange")) == 1
    assert len(events_of(ended, "group")) == 2
    assert len(events_of(ended, "exchange-done")) == 1


async def test_groups_whose_app_was_killed_go_on_and_a_further_attempt_has_a_number_of_its_own(
    here: Site, model: ModelState
) -> None:
    run, app = await here.begin(GROUPED)
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    await draw(members)
    groups = await enter(members)
    app.death = AppKilled("signal 9")
    app.crashed.set()
    await until(lambda: len(here.apps) == 2 and here.apps[1].start is not None)
    await end(asked)
    asked = asyncio.create_task(here.apps[1].exchange(model, ALL))
    await until(lambda: [one.is_led for one in here.application.queue.active_exchanges.open_of(run)] == [True, True])
    await groups[1][0].withdraw()
    again = await enter(groups[1])
    assert {member.task.exchange for member in again[1] if member.task} == {4}
    await asyncio.gather(*(member.secure() for member in members))
    answer = await asked
    assert isinstance(answer, Replies), answer
    assert len(answer.replies) == 2
    ended = await here.finish(run, here.apps[1], model)
    assert (ended.status, ended.rounds) == ("finished", 1)
    assert sorted(event["exchange"] for event in events_of(ended, "group")) == [2, 3, 4]


async def test_a_group_waits_for_its_members_to_find_a_server_that_was_started_again(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    """Nobody can stand in for them, and an attempt that nobody has heard of yet would end at once, and the next."""
    async with site(federation, tmp_path) as first:
        run, app = await first.begin(GROUPED)
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = list(first.members.values())
        await draw(members)
        groups = await enter(members)
        app_sha256 = (await first.show(run)).app_sha256
        await asyncio.to_thread(shutil.copytree, tmp_path / "data", tmp_path / "crashed")
        await end(asked)
    (tmp_path / "again").mkdir()
    (tmp_path / "crashed").rename(tmp_path / "again" / "data")
    async with site(federation, tmp_path / "again") as second:
        await until(lambda: bool(second.apps) and second.apps[-1].start is not None)
        app = second.apps[-1]
        for member in members:
            member.http = second.http
        asked = asyncio.create_task(app.exchange(model, ALL))
        await until(lambda: len(second.application.queue.active_exchanges.open_of(run)) == 2)
        second.clock.advance(31)  # longer than a client may be silent
        while len(events_of(await second.show(run), "group-ended")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(50):  # as long as an attempt that nobody takes part in lasts, and more
            shown = await second.show(run)
        assert len(events_of(shown, "group")) == 2, "no attempt is begun that nobody can take part in"
        await asyncio.gather(*(member.join(app_sha256) for member in members))
        await enter(groups[1])
        await enter(groups[2])
        await asyncio.gather(*(member.secure() for member in members))
        answer = await asked
        assert isinstance(answer, Replies), answer
        assert len(answer.replies) == 2
        ended = await second.finish(run, app, model)
    assert [event["attempt"] for event in events_of(ended, "group")] == [1, 1, 2, 2]


async def test_what_cannot_be_is_refused_before_it_starts(here: Site) -> None:
    with raises(Failure, kind="bad-configuration", match="groups", numbers=(3, 9, 6)):
        await here.submit({**GROUPED, "groups": 3})
