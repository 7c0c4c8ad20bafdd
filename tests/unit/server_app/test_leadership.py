"""Two servers over one database: one leads, the other takes over when it may, and nobody leads beside another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support.members import Failure
from support.serverside import Site
from support.storage_faults import READ_ONLY, refusing

from fedcore.errors import LeaseLost
from fedcore.wire.presence import LEADER_PATH
from server_app.http.standby import Standby
from server_app.members.presence import Presence
from server_app.members.reach import Reach
from server_app.operation.clocks import Clocks
from server_app.runs.leadership import LEASE, REACHABLE, READY, Leadership, seconds_since_boot
from server_app.storage.store import Store


class Server:
    """What leads and follows, without the rest of a server."""

    def __init__(self, name: str, store: Store, seconds: float) -> None:
        self.store = store
        self.leading = False
        settings = SimpleNamespace(
            shared=True, lease_seconds=seconds, url="https://0.0.0.0:8443", address=f"https://{name}"
        )
        self.settings = settings
        self.off = 0.0
        self.presence = Presence(clock=time.monotonic)
        self.clocks = Clocks(dict, time.monotonic)
        services: Any = SimpleNamespace(
            settings=settings,
            store=store,
            new_id=lambda: name,
            wall=self._wall,
            clocks=self.clocks,
            reach=Reach(self.presence, 1e9),
        )
        self.reach = services.reach
        self.suspended = 0.0
        self.leadership = Leadership(services, begin=self._begin, cease=self._cease, clock=self._clock)

    def _wall(self) -> float:
        return time.time() + self.off

    def _clock(self) -> float:
        return seconds_since_boot() + self.suspended

    async def _begin(self) -> None:
        self.leading = True

    async def ready(self) -> httpx.Response:
        """What it answers to /readyz, as one that stands by or as one that would pass the question on."""
        leadership = self.leadership
        standby = Standby(passes_on, lambda: self.leads, lambda: leadership.trouble, leader=lambda: leadership.leader)
        return await ask(standby, "/readyz")

    async def _cease(self) -> None:
        self.leading = False

    @property
    def leads(self) -> bool:
        assert self.leading or not self.leadership.leads
        return self.leadership.leads


async def passes_on(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"led"})


async def ask(app: Standby, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as http:
        return await http.get(path)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Callable[[float], Any]]:
    made: list[Server] = []

    async def make(seconds: float) -> tuple[Server, Server]:
        path = tmp_path / "shared.sqlite3"
        made.extend([Server(name, await Store.open(path), seconds) for name in ("a", "b")])
        return made[0], made[1]

    yield make
    for server in made:
        await server.leadership.stop()
        await server.store.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def renewals(leader: Server, number: int) -> None:
    """Until the leader has extended its lease so many times, and had as many occasions to make way."""
    for _ in range(number):
        before = await leader.store.lease(LEASE)
        assert before is not None
        now = before
        while now is not None and now[0].until == before[0].until:
            await asyncio.sleep(0.02)
            now = await leader.store.lease(LEASE)


async def test_one_leads_and_gives_the_lead_back_at_its_stop(servers: Any) -> None:
    first, second = await servers(30.0)
    await first.leadership.start()
    await until(lambda: first.leads)
    await second.leadership.start()
    await asyncio.sleep(0.05)
    assert not second.leads
    await first.leadership.stop()
    assert not first.leads
    found = await first.store.lease(LEASE)
    assert found is not None
    assert found[0].holder == "b" or found[1] < 0.0, "it is given back, and does not run out"
    await until(lambda: second.leads)
    with pytest.raises(LeaseLost):
        await first.store.remember_client(1, "ab" * 32, "1")


async def test_one_that_is_stopped_while_it_takes_the_lead_gives_it_back(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await servers(30.0)
    take, taken = first.store.take_lease, asyncio.Event()

    async def takes(*words: Any, **named: Any) -> None:
        await take(*words, **named)
        taken.set()
        await asyncio.Event().wait()  # it is in the database, and the server does not know it yet

    monkeypatch.setattr(first.store, "take_lease", takes)
    await first.leadership.start()
    await taken.wait()
    await first.leadership.stop()
    await second.leadership.start()
    async with asyncio.timeout(10):
        await until(lambda: second.leads)


@pytest.mark.parametrize(("address", "named"), [("https://a:8443", "https://a:8443"), ("", None)])
async def test_one_that_stands_by_names_the_one_that_leads(servers: Any, address: str, named: str | None) -> None:
    """Not one that was not told its address: it knows only that it listens on all of its machine's."""
    first, second = await servers(30.0)
    first.settings.address = address
    await first.leadership.start()
    await until(lambda: first.leads)
    await second.leadership.start()
    while await second.store.lease(READY) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (await second.ready()).json().get("leader") == named
    with refusing(second.store, READ_ONLY):
        await until(lambda: bool(second.leadership.trouble))
        assert "leader" not in (await second.ready()).json(), "it does not know it any more"


async def test_one_that_cannot_renew_its_lease_leads_no_more_before_another_does(servers: Any) -> None:
    first, second = await servers(1.0)
    await first.leadership.start()
    await until(lambda: first.leads)
    await second.leadership.start()
    with refusing(first.store, READ_ONLY):
        await until(lambda: not first.leads)
        await until(lambda: not first.leading)
        await until(lambda: second.leads)
    assert not first.leads


async def test_one_that_was_stopped_for_longer_than_its_lease_knows_it_as_it_wakes(servers: Any) -> None:
    first, _ = await servers(0.3)
    await first.leadership.start()
    await until(lambda: first.leads)
    time.sleep(0.4)  # noqa: ASYNC251 - as after SIGSTOP and SIGCONT: no task of this process ran meanwhile
    assert not first.leads, "before any of its tasks has noticed"
    assert (await first.ready()).status_code == 503


async def test_one_whose_machine_was_suspended_for_longer_knows_it_too(servers: Any) -> None:
    """CLOCK_BOOTTIME counts that time, and `time.monotonic` does not."""
    first, _ = await servers(30.0)
    await first.leadership.start()
    await until(lambda: first.leads)
    first.suspended = 31.0
    assert not first.leads, "before any of its tasks has noticed"
    assert seconds_since_boot() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=5.0)


async def test_one_whose_clock_is_wrong_makes_way_for_one_whose_clock_is_right(servers: Any) -> None:
    first, second = await servers(3.0)
    first.off = 7200.0
    await first.leadership.start()
    await until(lambda: first.leads)
    assert first.clocks.database == pytest.approx(-7200.0, abs=2.0)
    assert first.clocks.warning, "nobody else can lead: it does, and says so"
    await renewals(first, 2)
    assert first.leads
    await second.leadership.start()
    await until(lambda: second.leads)
    assert not first.leads
    await renewals(second, 2)
    assert second.leads, "the other does not take it back"
    first.off = 0.0
    await until(lambda: not first.clocks.own_is_off)
    await second.leadership.stop()
    await until(lambda: first.leads)


async def test_one_that_no_client_reaches_makes_way_for_one_that_clients_ask(servers: Any) -> None:
    first, second = await servers(3.0)
    await first.leadership.start()
    await until(lambda: first.leads)
    first.presence.touch(1)
    await second.leadership.start()
    second.reach.note_request()
    await renewals(first, 2)
    assert first.leads, "a client reaches it"
    first.presence.stop(1)
    await until(lambda: second.leads)
    assert not first.leads


async def test_one_that_made_way_leaves_the_other_time_to_lead(servers: Any) -> None:
    first, second = await servers(3.0)
    await first.leadership.start()
    await until(lambda: first.leads)
    assert await second.store.take_lease(REACHABLE, holder="b", url="https://b", seconds=30.0)
    await until(lambda: not first.leading)
    began = time.monotonic()
    await until(lambda: first.leads)
    assert time.monotonic() - began > 1.5, "it tries several times a second"


async def test_one_that_no_client_reaches_leads_on_if_none_asks_another(servers: Any) -> None:
    first, second = await servers(3.0)
    await first.leadership.start()
    await until(lambda: first.leads)
    await second.leadership.start()
    await renewals(first, 2)
    assert first.leads


async def test_two_whose_clocks_are_wrong_do_not_pass_the_lead_to_and_fro(servers: Any) -> None:
    """It may be the database whose clock is wrong."""
    first, second = await servers(3.0)
    first.off = second.off = 7200.0
    await first.leadership.start()
    await until(lambda: first.leads)
    await second.leadership.start()
    await renewals(first, 2)
    assert first.leads
    assert not second.leads


async def test_one_that_does_not_know_who_leads_says_why(servers: Any) -> None:
    first, _ = await servers(30.0)
    with refusing(first.store, READ_ONLY):
        await first.leadership.start()
        await until(lambda: bool(first.leadership.trouble))
        answer = await first.ready()
        assert answer.status_code == 503
        assert "whether another server leads is not known: " in answer.json()["detail"]


async def test_a_leader_whose_lease_is_not_renewed_says_so(here: Site) -> None:
    here.application.leadership.trouble = "the lease is not renewed: the database is read-only"
    answer = await here.http.get("/readyz")
    assert answer.status_code == 503
    assert "the lease is not renewed" in answer.json()["detail"]


async def test_the_leader_gauge_follows_the_leadership(here: Site) -> None:
    registry = here.services.metrics.registry
    assert registry.get_sample_value("fedcore_leader") == 1
    await here.application.leadership.stop()
    assert registry.get_sample_value("fedcore_leader") == 0


async def test_a_server_that_stands_by_says_who_can_help() -> None:
    leads = False
    app = Standby(passes_on, lambda: leads, lambda: "")
    answer = await ask(app, "/v1/task")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:fedcore:problem:not-leading")
    assert (await ask(app, "/readyz")).status_code == 503
    assert (await ask(app, "/healthz")).status_code == 200
    leads = True
    assert (await ask(app, "/v1/task")).text == "led"


async def test_an_answer_is_not_begun_once_another_may_lead() -> None:
    leads = True

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        nonlocal leads
        leads = False  # while the answer was made
        await passes_on(scope, receive, send)

    answer = await ask(Standby(slow, lambda: leads, lambda: ""), "/v1/task")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:fedcore:problem:not-leading")
    assert b"led" not in answer.content.replace(b"leads", b"")


async def test_what_waits_for_an_answer_is_refused_as_soon_as_the_lead_ends() -> None:
    """The route may wait for a database that does not answer."""
    asks, goes_on, leads = asyncio.Event(), asyncio.Event(), True

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        asks.set()
        await goes_on.wait()
        await passes_on(scope, receive, send)

    standby = Standby(waits, lambda: leads, lambda: "")
    answers: asyncio.Queue[Any] = asyncio.Queue()
    scope = {"type": "http", "path": "/v1/task", "method": "GET", "headers": []}
    asking = asyncio.create_task(standby(scope, asyncio.Event().wait, answers.put))
    await asks.wait()
    leads = False
    await standby.refuse_open()
    assert (await answers.get())["status"] == 503
    goes_on.set()
    await asking
    assert (await answers.get())["type"] == "http.response.body"
    assert answers.empty(), "what the route says later does not go out"


async def test_a_server_that_leads_no_more_refuses_what_waits_for_its_database(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, goes_on = asyncio.Event(), asyncio.Event()
    read = here.services.store.database.read

    async def waits(*words: Any, **named: Any) -> Any:
        asks.set()
        await goes_on.wait()
        return await read(*words, **named)

    answers: asyncio.Queue[Any] = asyncio.Queue()
    head = {"authorization": f"Bearer {here.operator_kit.token}"}
    request = here.http.build_request("GET", "/v1/runs", headers=head)
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/v1/runs",
        "raw_path": b"/v1/runs", "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1),
        "server": ("server", 80), "headers": [(name.lower(), value) for name, value in request.headers.raw],
    }  # fmt: skip
    monkeypatch.setattr(here.services.store.database, "read", waits)
    asking = asyncio.create_task(here.application.asgi(scope, asyncio.Event().wait, answers.put))
    await asks.wait()
    ending = asyncio.create_task(here.application.leadership.stop())
    async with asyncio.timeout(5):
        assert (await answers.get())["status"] == 503
    goes_on.set()
    await asyncio.gather(asking, ending)


async def test_a_request_does_not_end_before_its_refusal() -> None:
    """A refusal first reads the rest of a body, while the route sees the end of the request."""
    asks, sends, leads = asyncio.Event(), asyncio.Event(), True
    sent: list[Any] = []

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        asks.set()
        await sends.wait()
        assert (await receive())["type"] == "http.disconnect"

    async def send(message: Any) -> None:
        sends.set()
        await asyncio.sleep(0.01)
        sent.append(message)

    standby = Standby(reads, lambda: leads, lambda: "")
    scope = {"type": "http", "path": "/v1/task", "method": "PUT", "headers": []}
    asking = asyncio.create_task(standby(scope, asyncio.Event().wait, send))
    await asks.wait()
    leads = False
    refusing = asyncio.create_task(standby.refuse_open())
    await asking
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    await refusing


async def test_a_standby_knows_the_members_that_ask_it(here: Site) -> None:
    await here.application.leadership.stop()
    member, reach = next(iter(here.members.values())), here.services.reach
    assert not reach.on_standby
    with pytest.raises(Failure):
        await member.ask("GET", LEADER_PATH)
    assert not reach.on_standby, "clients ask that of all servers, all the time"
    assert (await here.http.get("/v1/task")).status_code == 503
    assert not reach.on_standby, "a stranger"
    with pytest.raises(Failure):
        await member.ask("GET", "/v1/task")
    assert reach.on_standby
