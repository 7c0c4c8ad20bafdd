"""Rosters that change while an agent runs: learnt in the middle of its work, and refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.agents import FAST, agent_running, until
from support.authority import authority_key
from support.scripted import problem

from client_app.agent.agent import Agent
from client_app.exchange.client import Client
from fedcore.errors import ProtocolViolation, Refused
from fedcore.federation import ClientKit, FederationFolder, Member, Roster
from fedcore.federation.enrolment import rotate
from fedcore.federation.kits.identity import public_bytes
from fedcore.wire.tasks import Task
from tests.support.raising import raises

Script = Any  # support.scripted.Scripted


@pytest.fixture
def own(client: Client, kit: Path) -> Client:
    """The client over a kit that is its own to change."""
    return replace(client, kit=ClientKit.load(kit))


@pytest.fixture
def following(federation: FederationFolder) -> Callable[..., Roster]:
    """Signs the next roster; nothing is written."""
    key = authority_key(federation.folder)

    def follow(known: Roster, members: Any = None, revoked: Any = ()) -> Roster:
        return known.followed_by(known.members if members is None else members, revoked, key)

    return follow


def with_a_fifth(roster: Roster) -> tuple[Member, ...]:
    return *roster.members, Member(id=5, name="north", public_key=b"n" * 32)


async def test_a_task_under_a_newer_roster_goes_on_with_it(
    script: Script, own: Client, make_task: Callable[..., Task], following: Callable[..., Roster], log: StringIO
) -> None:
    first = own.kit.roster
    async with script.serving(), agent_running(own) as running:
        await until(lambda: script.polls, running)
        second = following(first, with_a_fifth(first))
        script.use(second, following(second))
        script.go_on(make_task(roster=3))
        script.tasks.append(script.task)
        await until(lambda: script.decoded and own.ledger.open_exchange is None, running)
    assert script.withdrawals == []
    assert ClientKit.load(own.kit.folder).roster.version == 3
    assert "roster 3: 5 members" in log.getvalue()
    assert script.joins == 1


async def test_a_server_with_a_newer_roster_is_joined(
    script: Script, own: Client, following: Callable[..., Roster]
) -> None:
    script.use(following(own.kit.roster))
    script.task = script.task.model_copy(update={"roster": 2})
    script.tasks.append(script.task)
    async with script.serving(), agent_running(own) as running:
        await until(lambda: script.decoded, running)
    assert ClientKit.load(own.kit.folder).roster.version == 2


@pytest.mark.parametrize(("version", "check"), [(1, "roster-rollback"), (3, "roster-gap")])
async def test_a_task_under_another_roster_is_refused(
    script: Script, own: Client, following: Callable[..., Roster], version: int, check: str, log: StringIO
) -> None:
    script.use(following(own.kit.roster))
    script.tasks.append(script.task.model_copy(update={"roster": version}))
    async with script.serving(), agent_running(own) as running:
        await until(lambda: script.withdrawals, running)
    assert [withdrawal.check for withdrawal in script.withdrawals] == [check]
    assert f"refused: {check}" in log.getvalue()
    assert own.work.calls == 0


@pytest.mark.parametrize(
    ("announced", "check"),
    [
        ({"roster": 1}, "roster-rollback"),
        ({"roster_sha256": "0" * 64}, "roster-fork"),
        ({"roster": 3}, "roster-gap"),
    ],
)
async def test_a_server_with_another_roster_is_refused_without_an_end(
    script: Script, own: Client, following: Callable[..., Roster], announced: dict[str, Any], check: str, log: StringIO
) -> None:
    """Said once, with nothing taken part in; where the server comes right the agent goes on by itself."""
    second = following(own.kit.roster)
    own = replace(own, kit=replace(own.kit, roster=second))
    script.use(second)
    script.tasks.append(script.task.model_copy(update={"roster": 2}))
    script.lies["join"] = lambda answer: answer.model_copy(update=announced)
    async with script.serving(), agent_running(own) as running:
        await until(lambda: script.joins >= 3, running)
        assert log.getvalue().count(f"refused, taking part in nothing: {check}") == 1
        assert script.polls == []
        script.lies.clear()
        script.task = script.tasks[0]
        await until(lambda: script.decoded, running)


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        (lambda roster: replace(roster, members=roster.members[:3]), "roster-unsigned"),
        (lambda roster: replace(roster, previous=b"x" * 32), "roster-unsigned"),
    ],
)
async def test_a_forged_roster_changes_nothing(
    script: Script, own: Client, following: Callable[..., Roster], spoil: Any, check: str, log: StringIO
) -> None:
    script.use(spoil(following(own.kit.roster)))
    script.tasks.append(script.task.model_copy(update={"roster": 2}))
    script.kits[1] = own.kit  # the join is honest, the task is not
    async with script.serving(), agent_running(own) as running:
        await until(lambda: script.withdrawals, running)
    assert [withdrawal.check for withdrawal in script.withdrawals] == [check]
    assert ClientKit.load(own.kit.folder).roster.version == 1


async def test_a_revoked_client_ends(script: Script, own: Client, following: Callable[..., Roster]) -> None:
    """By the roster that it is shown, or because the server says so; no restart could help."""
    known = own.kit.roster
    script.use(following(known, known.members[1:], known.members[:1]))
    script.authenticate = lambda request, body: None
    async with script.serving():
        with raises(ProtocolViolation, check="revoked", match="client-1"):
            await Agent(own, FAST).run()
        script.answers.append(problem(403, "revoked", "client-1 was revoked"))
        with raises(Refused, kind="revoked", match="client-1"):
            await Agent(own, FAST).run()


async def test_a_replaced_key_is_taken_up_where_the_old_one_counts_no_more(
    script: Script, own: Client, following: Callable[..., Roster], log: StringIO
) -> None:
    _, request = rotate(own.kit.folder)
    member, *others = own.kit.roster.members
    script.use(following(own.kit.roster, [replace(member, public_key=request.public_key), *others]))
    script.task = script.task.model_copy(update={"roster": 2})
    script.tasks.append(script.task)
    async with script.serving(), agent_running(own) as running:
        await until(lambda: script.decoded, running)
    assert "this client's new key is in use" in log.getvalue()
    assert public_bytes(ClientKit.load(own.kit.folder).identity) == request.public_key


async def test_a_key_that_waits_is_no_way_in(script: Script, own: Client, log: StringIO) -> None:
    """It counts when the roster names it, and not before."""
    rotate(own.kit.folder)
    stranger = Ed25519PrivateKey.generate()
    other = Roster.sign("testing", [Member(id=1, name="client-1", public_key=public_bytes(stranger))], stranger)
    script.kits = {1: replace(own.kit, roster=other)}
    async with script.serving(), agent_running(own) as running:
        await until(lambda: "does not accept this client's signature" in log.getvalue(), running)
    assert script.polls == []
    assert ClientKit.load(own.kit.folder).identity.public_key() == own.kit.identity.public_key()
