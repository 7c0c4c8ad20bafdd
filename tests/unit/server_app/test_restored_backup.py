"""An older state of the server is put back while a run is open; numbers of exchanges go on after those of clients."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from support.serverside import events_of, site, until

from fedcore.federation import FederationFolder
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from server_app.runs.app.messages import PlainReplies, Replies

ALL = [1, 2, 3, 4]


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
async def test_a_run_goes_on_after_the_numbers_that_its_clients_have_taken(
    federation: FederationFolder, tmp_path: Path, model: ModelState, aggregation: str
) -> None:
    settings = {"aggregation": aggregation, "max-attempts": 2}
    async with site(federation, tmp_path) as first:
        run, app = await first.begin(settings)
        app_sha256 = (await first.show(run)).app_sha256
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = await first.enter_all()
        backup = tmp_path / "backup"
        backup.mkdir()
        await asyncio.to_thread(shutil.copytree, tmp_path / "data", backup / "data")
        for number in range(3):  # as far as the clients have come since
            if number:
                asked = asyncio.create_task(app.exchange(model, ALL))
                await first.enter_all()
            await asyncio.gather(*(one.plain() if aggregation == "plain" else one.secure() for one in members))
            await asked
        await end(asked)
    async with site(federation, backup) as second:
        await until(lambda: bool(second.apps) and second.apps[-1].start is not None)
        app = second.apps[-1]
        for member in members:
            member.http = second.http
            await member.join(app_sha256)
        asked = asyncio.create_task(app.exchange(model, ALL))
        await asyncio.gather(*(member.enter() for member in members))
        assert {member.task.exchange for member in members if member.task} == {4}
        await asyncio.gather(*(one.plain() if aggregation == "plain" else one.secure() for one in members))
        answer = await asked
        assert isinstance(answer, Replies | PlainReplies), answer
        ended = await second.finish(run, app, model)
    assert ended.status == "finished"
    (failed,) = events_of(ended, "exchange-failed")
    assert "an older state of it was put back" in failed["reason"]
    assert [done["exchange"] for done in events_of(ended, "exchange-done")] == [4]
