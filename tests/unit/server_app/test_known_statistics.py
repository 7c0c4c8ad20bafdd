"""A run takes the statistics of an earlier one, which the transcript keeps; the operator chooses no number."""

from __future__ import annotations

import asyncio

import pytest
from support.members import Failure
from support.serverside import TINY, ScriptedApp, Site, until

from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.wire.events import RunOut
from fedcore.wire.operator import RunIn
from server_app.runs.app.messages import Replies
from server_app.runs.known_statistics import refused_query_advice

ALL = [1, 2, 3, 4]
SCALE = {"statistics-columns": ["age"], "statistics-mean": [51.5], "statistics-std": [12.25]}


async def train(here: Site, app: ScriptedApp, model: ModelState, **config: object) -> None:
    asked = asyncio.create_task(app.exchange(model, ALL, configs={"config": config}))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure() for member in members))
    assert isinstance(await asked, Replies)


async def submit(here: Site, **fields: object) -> RunOut:
    bundle = AppBundle.from_folder(TINY)
    body = RunIn(app_sha256=bundle.sha256, files=dict(bundle.files), **fields)  # type: ignore[arg-type]
    return RunOut.model_validate_json((await here.operator("POST", "/v1/runs", body)).content)


async def refused(here: Site, **fields: object) -> str:
    with pytest.raises(Failure) as error:
        await submit(here, **fields)
    return str(error.value.problem.kind)


async def earlier_run(here: Site, model: ModelState, **config: object) -> str:
    run, app = await here.begin({"key-agreement": "x25519"})
    await train(here, app, model, **config)
    await here.finish(run, app, model)
    return run


async def test_the_app_gets_what_clients_of_the_earlier_run_were_sent(here: Site, model: ModelState) -> None:
    earlier = await earlier_run(here, model, **SCALE, lr=0.5)
    again = (await submit(here, statistics_from=earlier)).run
    await until(lambda: len(here.apps) > 1 and here.apps[1].start is not None)
    start = here.apps[1].start
    assert start is not None
    assert start.known_statistics == {"run": earlier, "values": SCALE}
    row = await here.services.store.run(again)
    assert row is not None
    assert row.known_statistics == start.known_statistics, "for a server that starts again"


async def test_they_stay_when_the_run_is_forgotten(here: Site, model: ModelState) -> None:
    earlier = await earlier_run(here, model, **SCALE)
    assert await here.services.store.forget_run(earlier)
    assert (await submit(here, statistics_from=earlier)).run


async def test_a_run_that_has_none_gives_none(here: Site, model: ModelState) -> None:
    earlier = await earlier_run(here, model, lr=0.5)
    assert await refused(here, statistics_from=earlier) == "not-found"
    assert await refused(here, statistics_from="nosuch") == "not-found"


async def test_a_model_and_a_question_have_statistics_of_their_own(here: Site, model: ModelState) -> None:
    earlier = await earlier_run(here, model, **SCALE)
    for other in ({"initial_model": "ab" * 32}, {"statistics": {}}):
        assert await refused(here, statistics_from=earlier, **other) == "bad-configuration"


async def test_who_is_refused_hears_who_left_who_came_and_what_to_type(here: Site, model: ModelState) -> None:
    store, names = here.services.store, {**here.services.names, 5: "client-5", 6: "client-6"}
    assert await refused_query_advice(store, "tiny", [1, 2], ALL, names) == ""
    earlier = await earlier_run(here, model, **SCALE)
    advice = await refused_query_advice(store, "tiny", [1, 2, 5], [1, 2, 3, 5], names)
    assert f"--statistics-from {earlier}" in advice
    assert "left: client-4; away now: client-3; new: client-5" in advice
    assert await refused_query_advice(store, "another", [1, 2], ALL, names) == ""
    assert "since" not in await refused_query_advice(store, "tiny", ALL, ALL, names)
