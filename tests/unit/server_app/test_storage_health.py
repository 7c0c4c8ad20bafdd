"""/readyz says what cannot be written and read: the database, the disk, the object store."""

from __future__ import annotations

import asyncio

import pytest
from support.serverside import Site
from support.storage_faults import READ_ONLY, refusing

from server_app.background import check_storage
from server_app.operation.storage_health import STUCK_SECONDS, StorageHealth


async def ready(here: Site) -> tuple[int, str]:
    answer = await here.http.get("/readyz")
    return answer.status_code, answer.json().get("detail", "")


async def test_all_is_well_and_nothing_is_left_behind(here: Site) -> None:
    before = {path for path in here.services.settings.data_dir.rglob("*") if path.is_file()}
    await check_storage(here.services)
    await check_storage(here.services)
    assert await ready(here) == (200, "")
    after = {path for path in here.services.settings.data_dir.rglob("*") if path.is_file()}
    assert {path.name for path in after - before} <= {"server.sqlite3-wal", "server.sqlite3-shm"}


async def test_a_database_that_cannot_be_written(here: Site) -> None:
    with refusing(here.services.store, READ_ONLY):
        await check_storage(here.services)
        assert (await ready(here))[0] == 503
    found = await ready(here)
    assert found[0] == 503, "until it has been tried again"
    assert found[1].startswith("database: ")
    assert "read-only" in found[1]
    await check_storage(here.services)
    assert (await ready(here))[0] == 200


async def test_an_object_store_that_takes_nothing(here: Site) -> None:
    in_the_way = here.services.settings.data_dir / "health"
    in_the_way.write_text("")
    await check_storage(here.services)
    status, detail = await ready(here)
    assert status == 503
    assert detail.startswith("object store: ")
    in_the_way.unlink()
    await check_storage(here.services)
    assert (await ready(here))[0] == 200


async def test_what_fails_is_counted_for_the_alarm(here: Site) -> None:
    errors = here.services.metrics.storage_errors.labels("unavailable")
    with refusing(here.services.store, READ_ONLY):
        await check_storage(here.services)
    (sample, *_) = errors.collect()[0].samples
    assert sample.value == 1


async def test_a_store_that_never_answers_is_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    health = StorageHealth(lambda: now)
    hangs = asyncio.create_task(health.attempt("object store", asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    now = STUCK_SECONDS - 1
    assert health.trouble == ""
    now = STUCK_SECONDS + 1
    assert health.trouble == "object store: no answer for 21 s"
    hangs.cancel()
    await asyncio.gather(hangs, return_exceptions=True)
    assert health.trouble == ""
