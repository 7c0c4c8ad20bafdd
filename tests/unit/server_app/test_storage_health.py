"""/readyz says what cannot be written and read: the database, the disk, the object store."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from support.serverside import Site, until
from support.storage_faults import READ_ONLY, refusing

from fedcore.system.concurrency import end
from server_app.background import check_storage, watch_storage
from server_app.operation.storage_health import StorageHealth


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


async def test_a_spool_that_is_gone(here: Site) -> None:
    spool = here.services.settings.spool_dir
    spool.rename(spool.with_name("elsewhere"))
    await check_storage(here.services)
    status, detail = await ready(here)
    assert status == 503
    assert detail.startswith("disk of the data folder: ")
    spool.with_name("elsewhere").rename(spool)
    await check_storage(here.services)
    assert (await ready(here))[0] == 200


async def test_a_store_that_never_answers_is_trouble_and_hides_no_other(
    here: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    here.services.health.stuck_seconds = 0.01

    async def put(*_: object) -> None:
        await gate.wait()

    monkeypatch.setattr(here.services.objects, "put", put)
    watching = asyncio.create_task(watch_storage(here.services))
    try:
        with caplog.at_level(logging.WARNING, "fedcore.server"), refusing(here.services.store, READ_ONLY):
            await until(lambda: here.services.health.trouble.count("read-only") == 1)
            await until(lambda: "object store: no answer" in here.services.health.trouble)
            status, detail = await ready(here)
            assert status == 503
            assert "database: " in detail
            assert "object store: " in detail
        gate.set()
        assert sum("object store: " in record.message for record in caplog.records) == 1, "said once"
    finally:
        await end(watching)


async def test_a_store_is_not_blamed_for_the_time_in_which_the_server_stood_still(
    caplog: pytest.LogCaptureFixture,
) -> None:
    health = StorageHealth(stuck_seconds=0.5)
    with caplog.at_level(logging.WARNING, "fedcore.server"):
        # As SIGSTOP and SIGCONT do: both the answer and the end of the time are due as the process wakes.
        asyncio.get_running_loop().call_soon(time.sleep, 0.6)
        await health.check("object store", lambda: asyncio.sleep(0.01))
    assert health.trouble == ""
    assert caplog.records == []


async def test_nothing_is_well_before_its_first_check() -> None:
    health = StorageHealth()
    health.expect(["database"])
    assert health.trouble.startswith("database: ")
    await health.check("database", lambda: asyncio.sleep(0))
    assert health.trouble == ""


async def test_ready_asks_nobody(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stuck delays no answer."""

    async def stuck(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(here.services.store.database, "read", stuck)
    async with asyncio.timeout(5):
        assert (await ready(here))[0] == 200
