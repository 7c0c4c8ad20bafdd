"""Apps of open runs, offered to members whose owners installed another."""

from __future__ import annotations

import pytest
from support.members import Failure
from support.serverside import TINY, Site

from fedcore.flower.app import AppBundle
from fedcore.wire.presence import OFFERS_HEADER, AppOut

ANOTHER = "ab" * 32


async def offered(here: Site, client: int) -> str | None:
    answer = await here.members[client].ask("GET", "/v1/task?wait=0")
    assert answer.status_code == 204
    return answer.headers.get(OFFERS_HEADER)


async def test_the_app_of_an_open_run_is_offered_to_who_has_another(here: Site) -> None:
    bundle = AppBundle.from_folder(TINY)
    run, app = await here.begin()
    await here.members[4].join(ANOTHER)
    assert await offered(here, 4) == bundle.sha256
    assert await offered(here, 1) is None
    answer = await here.members[4].ask("GET", f"/v1/apps/{bundle.sha256}")
    assert AppBundle(AppOut.model_validate_json(answer.content).files).sha256 == bundle.sha256
    with pytest.raises(Failure) as refused:
        await here.members[4].ask("GET", f"/v1/apps/{ANOTHER}")
    assert refused.value.problem.kind == "not-found"
    await here.finish(run, app)


async def test_apps_are_for_members_and_of_open_runs_only(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.runs.files.offers.LOOK_SECONDS", 0.0)
    bundle = AppBundle.from_folder(TINY)
    assert (await here.http.get(f"/v1/apps/{bundle.sha256}")).status_code == 401
    run, app = await here.begin()
    await here.members[4].join(ANOTHER)
    assert await offered(here, 4) == bundle.sha256
    await here.finish(run, app)
    assert await offered(here, 4) is None
    with pytest.raises(Failure) as refused:
        await here.members[4].ask("GET", f"/v1/apps/{bundle.sha256}")
    assert refused.value.problem.kind == "not-found"
