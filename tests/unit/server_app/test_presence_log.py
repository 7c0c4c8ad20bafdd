"""Who is there, who has left without a word, and how the server hears of it; the clock stands still unless moved."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import uvicorn
from support.members import Member
from support.ports import reserved_port
from support.serverside import Site, events_of, site, until
from support.services import Clock
from support.serving import serving

from fedcore.federation import FederationFolder
from fedcore.state import ModelState
from server_app.members.presence import Presence
from server_app.runs.app.messages import Replies
from server_app.views.presence_log import PresenceLog

ALL = [1, 2, 3, 4]
LEFT = "has left without a word"


async def ask_for_more(member: Member) -> int:
    """Ask for a task after the one that the member took; the status of the answer."""
    assert member.task is not None
    path = f"/v1/task?run={member.task.run}&after={member.task.exchange}&wait=0"
    return (await member.ask("GET", path)).status_code


@pytest.mark.parametrize("until_step", ["advertise", "share", "upload", "sign"])
async def test_who_asks_for_another_task_has_left(here: Site, model: ModelState, until_step: str) -> None:
    """Its agent lost the exchange and could not say so: nobody waits an hour for it."""
    run, app = await here.begin({"train-seconds": 3600.0, "step-seconds": 3600.0})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    gone, others = members[3], members[:3]
    playing = asyncio.gather(*(member.secure() for member in others))
    await gone.secure(until=until_step)
    assert await ask_for_more(gone) == 204
    await playing
    assert isinstance(await asked, Replies)
    (dropped,) = events_of(await here.finish(run, app), "dropped")
    assert (dropped["client"], dropped["reason"]) == ("client-4", LEFT)


async def test_who_has_done_its_part_may_ask_for_another_task(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure(until="unmask") for member in members))
    await members[3].unmask()
    assert await ask_for_more(members[3]) == 204
    exchange = here.application.queue.exchange
    assert exchange is not None
    exchange.drop_silent()
    await asyncio.gather(*(member.unmask() for member in members[:3]))
    assert isinstance(await asked, Replies)
    assert events_of(await here.finish(run, app), "dropped") == []


async def test_who_asks_for_the_same_task_again_and_again_is_given_up(here: Site, model: ModelState) -> None:
    """Something between resets what the task leads to: the client is there all the time, and never begins."""
    run, app = await here.begin({"train-seconds": 3600.0, "step-seconds": 3600.0, "liveness-seconds": 10.0})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.advertise() for member in members[:3]))
    for _ in range(3):
        here.clock.advance(6.0)
        await asyncio.gather(*(member.ask("POST", "/v1/heartbeat", b"{}") for member in members[:3]))
        assert (await members[3].ask("GET", "/v1/task?wait=0")).status_code in (200, 204)
    await go_on(members[:3])
    assert isinstance(await asked, Replies)
    (dropped,) = events_of(await here.finish(run, app), "dropped")
    assert dropped["client"] == "client-4"
    assert "does not begin" in dropped["reason"]


async def test_who_has_lost_its_files_in_the_middle_is_given_up(here: Site, model: ModelState) -> None:
    """Its agent was started again in an empty folder: it is there, and asks for a task as if it had never had one."""
    run, app = await here.begin({"train-seconds": 3600.0, "step-seconds": 3600.0, "liveness-seconds": 10.0})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    lost, others = members[3], members[:3]
    playing = asyncio.gather(*(member.secure() for member in others))
    await lost.secure(until="upload")
    for _ in range(3):
        assert (await lost.ask("GET", "/v1/task?wait=0")).status_code == 204
        here.clock.advance(6.0)
        await asyncio.gather(*(member.ask("POST", "/v1/heartbeat", b"{}") for member in members))
    await playing
    assert isinstance(await asked, Replies)
    (dropped,) = events_of(await here.finish(run, app), "dropped")
    assert dropped["client"] == "client-4"
    assert "knows nothing" in dropped["reason"]


async def go_on(members: list[Member]) -> None:
    """From the second step of a secure exchange to its end."""

    async def rest(member: Member) -> None:
        for step in (member.share, member.receive, member.upload, member.sign, member.unmask):
            await step()

    await asyncio.gather(*map(rest, members))


async def test_an_open_poll_is_a_sign_of_life_and_its_end_is_the_end(
    federation: FederationFolder, tmp_path: Path
) -> None:
    """Behind TLS, as clients come."""
    trusted = ssl.create_default_context(cafile=federation.server / "ca.crt")
    certificate = {"ssl_certfile": federation.server / "server.crt", "ssl_keyfile": federation.server / "server.key"}
    async with site(federation, tmp_path) as made:
        with reserved_port() as port:
            config = uvicorn.Config(
                made.application.asgi, port=port, lifespan="off", ws="none", log_config=None, **certificate
            )
            async with serving(config):
                await _poll_and_hang_up(made, port, trusted)


async def _poll_and_hang_up(made: Site, port: int, trusted: ssl.SSLContext) -> None:
    presence = made.services.presence
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="127.0.0.1")
    path = "/v1/task?wait=25"
    fields = "".join(f"{name}: {value}\r\n" for name, value in made.members[1].signed("GET", path).items())
    writer.write(f"GET {path} HTTP/1.1\r\nHost: server\r\n{fields}\r\n".encode())
    await until(lambda: bool(presence.online(-1.0)))  # it waits: no request is so new
    made.clock.advance(1000.0)
    assert presence.online(15.0) == {1}
    assert presence.silent_for(1) == 0.0
    writer.transport.abort()
    await until(lambda: not presence.online(15.0))
    assert presence.silent_for(1) <= 15.0, "an exchange that has just asked for it lets it come back"


def test_who_is_expected_is_not_given_up_at_once_and_not_asked() -> None:
    clock = Clock()
    presence = Presence(clock=clock)
    presence.expect([1, 2])
    assert presence.online(15.0) == frozenset()
    clock.advance(10.0)
    presence.touch(2)
    clock.advance(10.0)
    assert presence.absence_reason(1, ("run", 1), 15.0) == "silent for more than 15 s"
    assert presence.absence_reason(2, ("run", 1), 15.0) == ""


def test_who_comes_and_goes_is_said_once_and_together() -> None:
    clock, said = Clock(), list[str]()
    presence = Presence(clock=clock)
    names = {number: f"client-{number}" for number in range(1, 1001)}
    roll = PresenceLog(presence, lambda: names, said.append)
    for client in names:
        presence.touch(client)
    roll.poll()
    roll.poll()
    clock.advance(16.0)
    for client in range(2, 1001):
        presence.touch(client)
    roll.poll()
    assert said == [
        "connected: 1000 (client-1, client-2, client-3, client-4, client-5, client-6, client-7, client-8, ...); "
        "1000 members are there",
        "gone: 1 (client-1); 999 members are there",
    ]
