"""Live streams: what they tell and to whom, how many there may be, and everything that ends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.listening import Listener, listening
from support.members import digest_of
from support.serverside import Site, until

from fedcore.run.plain import app_raised
from fedcore.state import ModelState
from fedcore.wire.events import AppPrinted, StageProgress, stamp
from fedcore.wire.operator import RunStatus
from fedcore.wire.problems import ProblemDocument
from fedcore.wire.uploads import ManifestIn
from fedcore.wire.watch import Role
from server_app.exchanges.plain import NO_REPLY
from server_app.http.event_stream import StreamSlots
from server_app.routes import live, operator
from server_app.runs.leadership import Leadership
from server_app.views import members
from server_app.views.redaction import NO_REASON, VISIBLE_KINDS
from server_app.views.run_views import Frame, newest

ALL = [1, 2, 3, 4]


def slots(here: Site) -> StreamSlots:
    found = here.application.fastapi.state.stream_slots
    assert isinstance(found, StreamSlots)
    return found


async def one_round(here: Site, app: Any, model: ModelState) -> None:
    asked = asyncio.create_task(app.exchange(model, ALL))
    await here.enter_all()
    await asyncio.gather(*(member.secure() for member in here.members.values()))
    await asked


async def test_a_run_is_followed_to_its_end(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    async with listening(here, f"/v1/runs/{run}/live", cookie=await here.sign_in()) as stream:
        (started,) = await stream.until("started")
        assert started.data["event"]["app"] == "tiny"
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        await one_round(here, app, model)
        (done,) = await stream.until("exchange-done")
        await here.finish(run, app, model)
        await stream.ended.wait()
    recorded = (await here.show(run)).events
    shown = {int(event.id): event.data for event in stream.events}
    assert list(shown) == sorted(shown)
    assert shown[int(done.id)] == recorded[int(done.id) - 1].model_dump(mode="json")
    left_out = {item.event.kind for item in recorded if item.seq not in shown}
    assert left_out <= {"stage"}, "only progress that newer progress replaces"
    assert stream.kinds[-1] == "ended"
    async with listening(here, f"/v1/runs/{run}/live", headers={"Last-Event-ID": stream.events[-1].id}) as again:
        await again.ended.wait()
    assert again.status == 204, "which tells a browser not to come again"


async def test_a_stream_goes_on_after_the_last_event(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    await one_round(here, app, model)
    await here.finish(run, app, model)
    events = (await here.show(run)).events
    for address, headers in ((f"live?after={events[-3].seq}", {}), ("live", {"Last-Event-ID": str(events[-3].seq)})):
        async with listening(here, f"/v1/runs/{run}/{address}", headers=headers) as stream:
            await stream.ended.wait()
        assert [event.id for event in stream.events] == [str(item.seq) for item in events[-2:]]
    async with listening(here, f"/v1/runs/{run}/live", headers={"Last-Event-ID": "nonsense"}) as stream:
        await stream.ended.wait()
    assert stream.events[0].id == "1"


async def test_viewers_do_not_see_what_the_app_prints(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    viewer = await here.sign_in(await here.link())
    app.on_line("patient 7 is odd")
    await here.finish(run, app, model)
    streams: dict[Role, Listener] = {}
    for role, cookie in ((Role.VIEWER, viewer), (Role.OPERATOR, "")):
        async with listening(here, f"/v1/runs/{run}/live", cookie=cookie) as streams[role]:
            await streams[role].ended.wait()
    assert "log" in streams[Role.OPERATOR].kinds
    assert "patient" not in streams[Role.VIEWER].body
    assert "ended" in streams[Role.VIEWER].kinds
    assert "patient" not in (await here.signed_in(viewer, "GET", f"/v1/runs/{run}")).text
    assert "patient" in (await here.operator("GET", f"/v1/runs/{run}")).text


async def test_viewers_do_not_see_what_an_exception_of_the_app_says(here: Site, model: ModelState) -> None:
    run, app = await here.begin({"aggregation": "plain"})
    viewer = await here.sign_in(await here.link())
    asked = asyncio.create_task(app.exchange(model, ALL))
    first, *others = await here.enter_all()
    raised = app_raised("ValueError: patient 7 is odd")
    await first.put("manifest", ManifestIn(digest=digest_of(b""), size=0, error=raised))
    await asyncio.gather(*(member.plain() for member in others))
    await asked
    app.fail("the ServerApp raised ValueError: patient 7 is odd")
    assert "patient" in (await here.follow(run)).reason
    bodies = [(await here.signed_in(viewer, "GET", f"/v1/runs{path}")).text for path in ("", f"/{run}")]
    for role, cookie in ((Role.VIEWER, viewer), (Role.OPERATOR, "")):
        async with listening(here, f"/v1/runs/{run}/live", cookie=cookie) as events:
            await events.ended.wait()
        async with listening(here, "/v1/live", cookie=cookie) as feed:
            await feed.until("runs")
        told = "".join([events.body, feed.body, *(bodies if role is Role.VIEWER else [])])
        assert ("patient" in told) == (role is Role.OPERATOR)
        assert (NO_REASON in told) == (role is Role.VIEWER)
        assert NO_REPLY in told


async def test_a_gauge_counts_the_streams_of_each_role(here: Site) -> None:
    viewer = await here.sign_in(await here.link())
    streams = here.services.metrics.streams
    async with listening(here, "/v1/live", cookie=viewer) as stream:
        await stream.until("clients")
        (family,) = streams.collect()
        assert {sample.labels["role"]: sample.value for sample in family.samples} == {"operator": 0, "viewer": 1}


async def test_viewers_get_some_events_at_a_time(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "EVENTS_OF_VIEWERS", 2)
    run, app = await here.begin()
    viewer = await here.sign_in(await here.link())
    for number in range(7):
        app.on_line(f"line {number}")
    app.fail("enough")
    ended = await here.follow(run)
    kept = [item.seq for item in ended.events if item.event.kind in VISIBLE_KINDS]
    found: list[int] = []
    while page := (await here.signed_in(viewer, "GET", f"/v1/runs/{run}?after={max(found, default=0)}")).json()[
        "events"
    ]:
        assert len(page) <= 2
        found += [event["seq"] for event in page]
    assert found == kept


async def test_the_newest_progress_of_a_stage_is_enough(here: Site) -> None:
    def progress(seq: int, stage: str, done: int) -> Frame:
        event = StageProgress(exchange=1, stage=stage, done=done, expected=9, seconds=1.0)
        return Frame.of(stamp(seq, 1.0, (now), event))

    now = (await here.submit()).submitted_at
    assert now is not None
    line = Frame.of(stamp(3, 1.0, now, AppPrinted(line="hello")))
    frames = [progress(1, "input", 1), progress(2, "unmask", 1), line, progress(4, "input", 7)]
    told = newest(frames, Role.OPERATOR).decode()
    assert [text for text in told.split("\n") if text.startswith("id")] == ["id: 2", "id: 3", "id: 4"]
    assert "hello" not in newest(frames, Role.VIEWER).decode()


async def test_each_event_is_read_once_for_all_streams(
    here: Site, model: ModelState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, app = await here.begin()
    async with (
        listening(here, f"/v1/runs/{run}/live") as one,
        listening(here, f"/v1/runs/{run}/live") as two,
        listening(here, f"/v1/runs/{run}/live") as three,
    ):
        for stream in (one, two, three):
            await stream.until("started")
        await asyncio.sleep(0)
        reads = 0
        read = here.services.store.events

        async def counted(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*arguments)

        monkeypatch.setattr(here.services.store, "events", counted)
        rings = here.services.run_bell.rings
        await one_round(here, app, model)
        for stream in (one, two, three):
            await stream.until("exchange-done")
        assert reads <= here.services.run_bell.rings - rings


# --- what ends them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/live", "/v1/runs/{run}/live"])
@pytest.mark.parametrize("end", ["signed out", "revoked", "stopped", "another leads", "time is up"])
async def test_what_ends_a_stream(here: Site, path: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = await here.begin()
    monkeypatch.setattr(live, "COMMENT_SECONDS", 0.05)
    token = await here.link()
    viewer, other = await here.sign_in(token), await here.sign_in()
    address = path.format(run=run) + ("?seconds=0.3" if end == "time is up" else "")
    async with (
        listening(here, address, cookie=viewer) as stream,
        listening(here, path.format(run=run), cookie=other) as unharmed,
    ):
        await until(lambda: bool(stream.events) and bool(unharmed.events))
        if end == "signed out":
            await here.signed_in(viewer, "DELETE", "/v1/session")
        elif end == "revoked":
            (link,) = (await here.services.store.links()) or [None]
            assert link is not None
            await here.operator("DELETE", f"/v1/links/{link.id}")
        elif end == "stopped":
            here.services.run_bell.stop()
        elif end == "another leads":
            monkeypatch.setattr(Leadership, "leads", False)
        await stream.ended.wait()
        await until(lambda: slots(here).open == (0 if end in ("stopped", "another leads") else 1))
    assert slots(here).open == 0
    here.services.run_bell.start()


async def test_a_session_that_runs_out_ends_its_streams(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = await here.sign_in()
    async with listening(here, "/v1/live", cookie=cookie) as stream:
        await stream.until("clients")
        wall = here.services.wall
        monkeypatch.setattr(here.application.fastapi.state.sessions, "wall", lambda: wall() + 13 * 3600)
        await stream.ended.wait()


async def test_a_browser_that_goes_leaves_its_place(here: Site) -> None:
    run, _ = await here.begin()
    async with listening(here, f"/v1/runs/{run}/live") as stream:
        await stream.until("started")
        assert slots(here).open == 1
    assert slots(here).open == 0
    assert not stream.ended.is_set() or stream.body


# --- how many ---------------------------------------------------------------------------------------------------


async def refused(here: Site, path: str, **asked: Any) -> tuple[int, str]:
    async with listening(here, path, **asked) as stream:
        await stream.ended.wait()
    return stream.status, ProblemDocument.model_validate_json(stream.body).kind


async def test_streams_of_an_address_and_of_viewers_are_counted(here: Site) -> None:
    viewer = await here.sign_in(await here.link())
    slots(here).each, slots(here).most[Role.VIEWER] = 1, 2
    async with listening(here, "/v1/live", cookie=viewer, client="10.0.0.1") as one:
        await one.until("runs")
        assert await refused(here, "/v1/live", cookie=viewer, client="10.0.0.1") == (429, "too-many-streams")
        async with listening(here, "/v1/live", cookie=viewer, client="10.0.0.2") as two:
            await two.until("runs")
            assert await refused(here, "/v1/live", cookie=viewer, client="10.0.0.3") == (429, "busy")
            async with listening(here, "/v1/live", client="10.0.0.4") as operator:
                await operator.until("runs")
    async with listening(here, "/v1/live", cookie=viewer, client="10.0.0.1") as again:
        await again.until("runs")


# --- the whole federation ---------------------------------------------------------------------------------------


def newest_of(stream: Listener, kind: str) -> Any:
    return next(event.data for event in reversed(stream.events) if event.kind == kind)


async def test_runs_and_members_are_told_when_they_change(here: Site) -> None:
    async with listening(here, "/v1/live", cookie=await here.sign_in()) as stream:
        (runs,) = await stream.until("runs")
        (clients,) = await stream.until("clients")
        assert (runs.data, len(clients.data["clients"])) == ({"runs": [], "more": False}, 4)
        run, app = await here.begin()
        await until(lambda: any(one["online"] for one in newest_of(stream, "clients")["clients"]))
        await until(lambda: [one["status"] for one in newest_of(stream, "runs")["runs"]] == [RunStatus.RUNNING])
        assert newest_of(stream, "runs")["runs"][0]["run"] == run
        app.fail("enough")


async def test_of_many_members_a_number_is_told(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST_NAMED", 3)
    async with listening(here, "/v1/live") as stream:
        (clients,) = await stream.until("clients")
    assert clients.data == {"online": 0, "members": 4}
