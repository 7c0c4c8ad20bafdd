"""Rosters that change while a server runs: taken between exchanges, refused by name, never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.authority import authority_key
from support.members import Failure, Member
from support.serverside import Site, site

from fedcore.errors import ProtocolViolation
from fedcore.federation import ClientKit, FederationFolder, Roster, ServerKit, provision
from fedcore.federation.authority import Authority
from fedcore.federation.enrolment import accept, ask
from fedcore.federation.fingerprint import fingerprint
from fedcore.federation.membership import follow
from fedcore.federation.requests import JoinRequest
from fedcore.state import ModelState
from fedcore.wire.operator import RosterIn, RosterOut
from fedcore.wire.presence import HeartbeatIn, RostersOut
from server_app.members.rosters import Rosters
from server_app.runs.app.messages import Replies
from tests.support.raising import raises


@dataclass
class Growing:
    """A server whose federation changes, and its authority's folder."""

    site: Site
    made: FederationFolder
    folder: Path

    @property
    def authority(self) -> Authority:
        return Authority.load(self.made.folder)

    async def publish(self, *rosters: Roster) -> RosterOut:
        body = RosterIn(rosters=[roster.to_json() for roster in rosters or self.authority.rosters])
        return RosterOut.model_validate_json((await self.site.operator("PUT", "/v1/roster", body)).content)

    def admit(self, name: str) -> Member:
        """A new member, of the authority's newest roster, which nobody else knows yet."""
        kit = self.folder / name
        _, request = ask(kit, name)
        authority = self.authority.approve([request])
        admission = self.folder / f"{name}.json"
        admission.write_text(authority.admission(max(authority.roster.keys)).to_json())
        return Member(accept(kit, admission, fingerprint(authority.public_key)), self.site.http, self.folder)

    async def refusal(self, member: Member) -> str:
        """Kind and detail of the problem that a member's request meets."""
        with pytest.raises(Failure) as caught:
            await member.ask("POST", "/v1/heartbeat", HeartbeatIn())
        return f"{caught.value.response.status_code} {caught.value.problem.kind}: {caught.value.problem.detail}"


@pytest.fixture
async def growing(tmp_path: Path) -> AsyncIterator[Growing]:
    made = provision(tmp_path / "fed", name="growing", clients=4, now=datetime.now(UTC), hosts=["127.0.0.1"])
    async with site(made, tmp_path) as here:
        yield Growing(here, made, tmp_path)


def known(growing: Growing, client: int) -> Member:
    return growing.site.members[client]


async def test_members_come_and_go_by_name(growing: Growing) -> None:
    new = growing.admit("north")
    assert await growing.refusal(new) == ("401 unauthorized: the request is not signed by a key of this federation")
    assert await growing.publish() == RosterOut(roster=2, newest=2)
    await new.ask("POST", "/v1/heartbeat", HeartbeatIn())
    growing.authority.revoke(["client-2"])
    assert (await growing.publish()).roster == 3
    assert await growing.refusal(known(growing, 2)) == (
        "403 revoked: client-2 was revoked from the federation growing, by its authority"
    )
    assert growing.site.services.presence.online(60.0) == {5}
    assert ServerKit.load(growing.made.server).roster == growing.authority.roster, "kept for the next start"


async def test_only_who_has_the_key_hears_of_a_revocation(growing: Growing) -> None:
    growing.authority.revoke(["client-2"])
    await growing.publish()
    for key in (Ed25519PrivateKey.generate(), known(growing, 1).kit.identity):
        with raises(Failure, kind="unauthorized", status=401):
            await known(growing, 2).ask("GET", "/v1/task", key=key)


async def test_an_open_exchange_keeps_the_roster_that_it_began_with(growing: Growing, model: ModelState) -> None:
    run, app = await growing.site.begin()
    asked = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))
    members = await growing.site.enter_all()
    new = growing.admit("north")
    growing.authority.revoke(["client-2"])
    assert await growing.publish() == RosterOut(roster=1, newest=3)
    assert (await growing.refusal(new)).startswith("429 busy: the roster that has this client comes into use when")
    assert growing.site.services.roster.after(1) == [], "nobody learns of it before it is in use"
    await asyncio.gather(*(member.secure() for member in members))
    answer = await asked
    assert isinstance(answer, Replies), "with the client that is revoked, which belonged to it"
    assert growing.site.services.roster.current.version == 3
    assert (await growing.refusal(known(growing, 2))).startswith("403 revoked: client-2")

    await new.join(members[0].task.app_sha256)  # type: ignore[union-attr]
    asked = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))
    there = [*(known(growing, client) for client in (1, 3, 4)), new]
    for member in there:
        answer = await member.ask("GET", f"/v1/rosters?after={member.kit.roster.version}")
        member.kit = follow(member.kit, RostersOut.model_validate_json(answer.content).rosters)
    tasks = await asyncio.gather(*(member.enter() for member in there))
    assert [(task.roster, task.cohort) for task in tasks] == [(3, [1, 3, 4, 5])] * 4
    await asyncio.gather(*(member.secure() for member in there))
    assert isinstance(await asked, Replies)
    ended = await growing.site.finish(run, app, model)
    assert ended.status == "finished"
    assert [told.event.survivors for told in ended.events if told.event.kind == "exchange-done"] == [
        ["client-1", "client-2", "client-3", "client-4"],
        ["client-1", "client-3", "client-4", "north"],
    ]


@pytest.mark.parametrize("check", ["roster-rollback", "roster-fork", "roster-gap", "roster-unsigned"])
async def test_a_roster_that_does_not_follow_is_refused_by_name(growing: Growing, check: str) -> None:
    for name in ("north", "south"):
        growing.admit(name)
    first, second, third = growing.authority.rosters
    assert (await growing.publish(second)).newest == 2
    fork = first.followed_by(first.members[:3], [first.members[3]], authority_key(growing.authority.folder))
    fourth = third.followed_by(third.members[1:], third.members[:1], authority_key(growing.authority.folder))
    offered = {
        "roster-rollback": first,
        "roster-fork": fork,
        "roster-gap": fourth,
        "roster-unsigned": replace(third, members=third.members[:4]),
    }[check]
    with raises(Failure, kind="protocol-violation", status=422, check=check):
        await growing.publish(offered)
    assert growing.site.services.roster.newest == second
    assert ServerKit.load(growing.made.server).roster == second
    assert (await growing.publish()).newest == 3, "the honest successor still goes in; what leads up to it is no news"


async def test_only_an_operator_hands_in_rosters_and_only_clients_ask_for_them(growing: Growing) -> None:
    growing.admit("north")
    body = RosterIn(rosters=[growing.authority.roster.to_json()])
    with pytest.raises(Failure, match="401"):
        await known(growing, 1).ask("PUT", "/v1/roster", body)
    with pytest.raises(Failure, match="401"):
        await growing.site.operator("GET", "/v1/rosters?after=1")
    assert growing.site.services.roster.newest.version == 1


async def test_what_cannot_be_kept_is_not_taken(growing: Growing) -> None:
    path = growing.made.server / "rosters.json"
    path.unlink()
    path.mkdir()
    growing.authority.revoke(["client-2"])
    with raises(Failure, kind="internal", status=500):
        await growing.publish()
    await known(growing, 2).ask("POST", "/v1/heartbeat", HeartbeatIn())
    path.rmdir()
    assert (await growing.publish()).roster == 2


async def test_a_replaced_key_counts_at_once_and_the_old_one_no_more(growing: Growing) -> None:
    member = known(growing, 3)
    new = Ed25519PrivateKey.generate()
    growing.authority.approve([JoinRequest.make("client-3", new, member.kit.identity)])
    await growing.publish()
    assert (await growing.refusal(member)).startswith("401 unauthorized")
    await member.ask("POST", "/v1/heartbeat", HeartbeatIn(), key=new)
    assert ClientKit.load(growing.made.clients[2]).roster.version == 1


async def test_another_server_uses_what_was_published_to_this_one(tmp_path: Path) -> None:
    made = provision(tmp_path / "fed", name="growing", clients=4, now=datetime.now(UTC), hosts=["127.0.0.1"])
    kit = ServerKit.load(made.server)
    copy = tmp_path / "copy.json"
    copy.write_bytes(kit.rosters_file.read_bytes())
    async with site(made, tmp_path) as here:
        growing = Growing(here, made, tmp_path)
        growing.admit("north")
        await growing.publish()
        other = Rosters(kit.rosters, authority=kit.authority, path=copy)
        await other.share(here.services.store)
    assert (other.current.version, other.names[5]) == (2, "north")
    assert copy.read_bytes() == kit.rosters_file.read_bytes(), "kept for the next start, with whatever database"


async def test_a_server_leaves_the_others_what_only_it_has(tmp_path: Path) -> None:
    made = provision(tmp_path / "fed", name="growing", clients=4, now=datetime.now(UTC), hosts=["127.0.0.1"])
    Authority.load(made.folder).revoke(["client-2"])
    kit = ServerKit.load(made.server)
    chain = Authority.load(made.folder).rosters
    async with site(made, tmp_path) as here:
        ahead = Rosters(chain, authority=kit.authority, path=tmp_path / "ahead.json")
        await ahead.share(here.services.store)
        assert here.services.roster.newest.version == 1
        await here.services.roster.share(here.services.store)
        assert here.services.roster.current == chain[-1]


async def test_a_chain_in_the_database_that_the_authority_did_not_sign_is_refused(tmp_path: Path) -> None:
    made = provision(tmp_path / "fed", name="growing", clients=4, now=datetime.now(UTC), hosts=["127.0.0.1"])
    kit = ServerKit.load(made.server)
    first = kit.rosters[0]
    forged = first.followed_by(first.members[:3], first.members[3:], Ed25519PrivateKey.generate())
    async with site(made, tmp_path) as here:
        await here.services.store.add_roster(2, forged.to_json())
        with pytest.raises(ProtocolViolation, match="roster-unsigned"):
            await here.services.roster.share(here.services.store)
        assert here.services.roster.current == first
