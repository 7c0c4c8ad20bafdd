"""What operators see of runs: a list with times, the queue, and where each client stands."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.members import Failure
from support.serverside import TINY, Site, until

from fedcore.flower.app import AppBundle
from fedcore.state import ModelState, read_facts, sha256_file
from fedcore.system.concurrency import end
from fedcore.wire.base import Message
from fedcore.wire.operator import RunClientsOut, RunIn, RunsOut
from fedcore.wire.presence import HeartbeatIn
from server_app.runs.files.initial_models import MOST_UNCLAIMED

ALL = [1, 2, 3, 4]


async def listed(here: Site, **query: Any) -> RunsOut:
    words = "&".join(f"{key}={value}" for key, value in query.items())
    return RunsOut.model_validate_json((await here.operator("GET", f"/v1/runs?{words}")).content)


async def standing(here: Site, run: str) -> dict[int, tuple[str, str]]:
    answer = RunClientsOut.model_validate_json((await here.operator("GET", f"/v1/runs/{run}/clients")).content)
    return {client.id: (client.state.value, client.why) for client in answer.clients}


async def problem(work: Any, kind: str) -> str:
    with pytest.raises(Failure) as refused:
        await work
    assert refused.value.problem.kind == kind
    return str(refused.value.problem.detail)


async def test_runs_are_listed_newest_first_with_their_times(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    waiting = [(await here.submit()).run for _ in range(2)]
    found = await listed(here)
    assert [item.run for item in found.runs] == [*reversed(waiting), run]
    assert [item.position for item in found.runs] == [2, 1, None]
    led = found.runs[-1]
    assert led.submitted_at is not None
    assert led.started_at is not None
    assert led.submitted_at <= led.started_at
    assert led.ended_at is None
    assert (await here.show(waiting[1])).position == 2
    await here.finish(run, app, model)
    (ended,) = (await listed(here, status="finished")).runs
    assert ended.ended_at is not None
    assert ended.model is not None


async def test_a_page_ends_where_the_next_begins(here: Site) -> None:
    first, _ = await here.begin()
    second, third = [(await here.submit()).run for _ in range(2)]
    page = await listed(here, limit=2)
    assert ([item.run for item in page.runs], page.more) == ([third, second], True)
    page = await listed(here, limit=2, before=second)
    assert ([item.run for item in page.runs], page.more) == ([first], False)
    await problem(listed(here, before="unknown"), "not-found")
    await problem(listed(here, limit=0), "malformed")


async def test_a_run_that_waits_is_stopped_and_the_next_moves_up(here: Site) -> None:
    await here.begin()
    second, third = [(await here.submit()).run for _ in range(2)]
    assert (await here.show(third)).position == 2
    await here.operator("POST", f"/v1/runs/{second}/cancel")
    assert (await here.show(second)).status == "cancelled"
    assert (await here.show(third)).position == 1


async def test_where_each_client_stands(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    assert set((await standing(here, run)).values()) == {("waiting", "")}
    asked = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))
    members = await here.enter_all()
    assert {state for state, _ in (await standing(here, run)).values()} == {"training"}
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    body, _ = members[1].vector()
    await members[1].put("update/parts/0", body)
    await members[0].upload()
    await members[2].withdraw()
    found = await standing(here, run)
    assert str(len(body) // 1000) in found[2][1], "how much of it has come"
    assert {number: state for number, (state, _) in found.items()} == {
        1: "done",
        2: "uploading",
        3: "dropped",
        4: "training",
    }
    assert [found[number][1] for number in (1, 3, 4)] == ["", "withdrew: worker-died", ""]
    await end(asked)
    await here.operator("POST", f"/v1/runs/{run}/cancel")
    assert await standing(here, run) == {}, "nobody works for a run that has ended"


async def test_how_far_a_transfer_is(here: Site, model: ModelState) -> None:
    """Also one in a single part, of which the first bytes have come."""
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))
    loads, sends, *_ = members = await here.enter_all()
    assert loads.task is not None
    beat = HeartbeatIn(run=run, exchange=loads.task.exchange, received=2000)
    await loads.ask("POST", "/v1/heartbeat", beat)
    state, why = (await standing(here, run))[loads.id]
    assert (state, "2.0 kB" in why) == ("training", True)
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    body, _ = sends.vector()
    exchange = here.application.queue.exchange
    assert exchange is not None
    with exchange.transfers.receiving(sends.id, len(body)):
        exchange.transfers.note_sent(sends.id, 3000)
        state, why = (await standing(here, run))[sends.id]
    assert (state, "3.0 kB" in why) == ("uploading", True)
    await end(asked)


async def test_why_a_client_waits(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    await here.members[1].join("ab" * 32)
    here.services.presence.note_eligible(2, False)
    here.services.presence.stop(3)
    found = await standing(here, run)
    assert found[1] == ("waiting", "another app is installed there than the one of this run")
    assert found[2] == ("waiting", "may not train now, by its owner's rules")
    assert found[3] == ("away", "is not connected")
    assert found[4] == ("waiting", "")
    app.fail("enough")


async def test_clients_do_not_read_what_operators_do(here: Site) -> None:
    run, _ = await here.begin()
    for path in ("/v1/runs", f"/v1/runs/{run}/clients"):
        await problem(here.members[1].ask("GET", path), "unauthorized")


async def test_a_run_that_was_cancelled_goes_on(here: Site, model: ModelState, tmp_path: Path) -> None:
    run, app = await here.begin()
    await problem(here.operator("POST", f"/v1/runs/{run}/resume"), "bad-configuration")
    await here.operator("POST", f"/v1/runs/{run}/cancel")
    assert (await here.show(run)).status == "cancelled"
    await here.operator("POST", f"/v1/runs/{run}/resume")
    await until(lambda: len(here.apps) == 2 and here.apps[1].start is not None)
    ended = await here.finish(run, here.apps[1], model)
    assert ended.status == "finished"
    path = tmp_path / "model"
    path.write_bytes((await here.operator("GET", f"/v1/runs/{run}/model")).content)
    facts = read_facts(path)
    assert facts is not None
    assert (facts.run, facts.kind, facts.federation, facts.rounds) == (run, "final", "testing", 0)
    assert ended.model is not None
    assert ended.model.sha256 == sha256_file(path), "the hash is over the facts, too"
    assert app.stopped


# --- initial models ---------------------------------------------------------------------------------------------


async def put(here: Site, content: bytes, sha256: str = "") -> None:
    name = sha256 or hashlib.sha256(content).hexdigest()
    headers = {"Authorization": f"Bearer {here.operator_kit.token}", "Content-Type": "application/octet-stream"}
    answer = await here.http.request("PUT", f"/v1/models/{name}", content=content, headers=headers)
    if answer.status_code >= 400:
        raise Failure(answer)


def submission(initial: str) -> Message:
    bundle = AppBundle.from_folder(TINY)
    return RunIn(app_sha256=bundle.sha256, files=dict(bundle.files), initial_model=initial)


async def test_the_app_gets_the_model_that_was_sent(here: Site, model: ModelState, tmp_path: Path) -> None:
    path = tmp_path / "initial.safetensors"
    model.save(path)
    await put(here, path.read_bytes())
    await here.operator("POST", "/v1/runs", submission(sha256_file(path)))
    await until(lambda: bool(here.apps) and here.apps[0].start is not None)
    start = here.apps[0].start
    assert start is not None
    assert start.initial is not None
    assert Path(start.initial).parent.name == "answers", "the one place beside its own that the sandbox shows it"
    np.testing.assert_array_equal(ModelState.open(Path(start.initial))["weight"], model["weight"])


async def test_a_model_that_was_not_sent_is_asked_for(here: Site) -> None:
    said = await problem(here.operator("POST", "/v1/runs", submission("ab" * 32)), "not-found")
    assert "send it again" in said
    assert (await listed(here)).runs == []


async def test_what_is_no_model_is_refused(here: Site) -> None:
    await problem(put(here, b"nothing of the kind"), "malformed")
    await problem(put(here, b"something else", "ab" * 32), "digest-mismatch")
    assert list(here.services.settings.spool_dir.iterdir()) == []


async def test_models_that_nobody_claims_do_not_fill_the_disk(here: Site, tmp_path: Path) -> None:
    for number in range(MOST_UNCLAIMED + 2):
        path = tmp_path / "model"
        ModelState.from_arrays({"w": np.full(3, number, np.float32)}).save(path)
        await put(here, path.read_bytes())
    assert len(list(here.services.settings.spool_dir.iterdir())) == MOST_UNCLAIMED


async def test_a_buffer_that_would_show_single_updates_is_refused(here: Site) -> None:
    said = await problem(here.submit({"asynchrony": "buffered", "buffer-size": 1}), "bad-configuration")
    assert "a sum needs 3 clients" in said
    assert (await listed(here)).runs == []
