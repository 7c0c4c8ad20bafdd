"""The parts that keep bytes: fold and store; and what a restart finds."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.serverside import Site, events_of

from fedcore.errors import ConflictingMessage, RoundFailed, RunFailed, StorageFull, UsageError
from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.state import Layout, ModelState, TensorSpec
from fedcore.wire.events import AppPrinted, stamp
from fedcore.wire.operator import RunStatus
from server_app.exchanges.secure import SecureExchange
from server_app.exchanges.sums import sum_file
from server_app.exchanges.sums import sum_file as fold
from server_app.exchanges.sums.masked_sum import MaskedSum
from server_app.exchanges.sums.sum_file import SumFile
from server_app.runs.app.messages import Room
from server_app.runs.run_context import refuse_without_memory
from server_app.storage.blobs import Spool
from server_app.storage.store import Store
from tests.support.raising import raises

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("words", [0, 1, 7, 65_537, 1_200_003])
@pytest.mark.parametrize("threads", [1, 3])
def test_fold_adds_modulo_2_to_the_64(
    tmp_path: Path, words: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "MIN_WORDS_PER_THREAD", 1000)
    rng = np.random.default_rng(words)
    vector, total = (rng.integers(0, 2**64, words, dtype=np.uint64) for _ in range(2))
    vector.astype("<u8").tofile(tmp_path / "vector")
    total.astype("<u8").tofile(tmp_path / "sum")
    fold.fold_file(tmp_path / "vector", tmp_path / "sum", threads=threads)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "sum", "<u8"), total + vector)


def test_fold_refuses_another_length_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "vector").write_bytes(b"\x01" * 23)
    (tmp_path / "sum").write_bytes(bytes(24))
    with raises(UsageError, numbers=(23, 3)):
        fold.fold_file(tmp_path / "vector", tmp_path / "sum", threads=1)
    assert (tmp_path / "sum").read_bytes() == bytes(24)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = await Store.open(tmp_path / "server.sqlite3")
    await made.add_run(run="r1", aggregation="secure", app="a", app_sha256="0", run_config={}, settings={})
    yield made
    await made.close()


async def test_one_receipt_for_each_step_of_a_client(store: Store) -> None:
    same = [store.add_receipt("r1", 1, "update", 1, b"a" * 32) for _ in range(5)]
    await asyncio.gather(*same)
    with pytest.raises(ConflictingMessage):
        await store.add_receipt("r1", 1, "update", 1, b"b" * 32)
    await store.add_receipt("r1", 2, "update", 1, b"b" * 32)
    await store.add_receipt("r1", 1, "update", 2, b"b" * 32)


async def test_a_run_ends_once(store: Store) -> None:
    await store.add_events("r1", [stamp(1, 0.0, NOW, AppPrinted(line="x"))])
    ends = [
        store.end_run("r1", status, "why", seconds=1.0, time=NOW) for status in (RunStatus.FAILED, RunStatus.CANCELLED)
    ]
    assert sorted(await asyncio.gather(*ends)) == [False, True]
    events = await store.events("r1", 0)
    assert [(item.seq, item.event.kind) for item in events] == [(1, "log"), (2, "ended")]
    row = await store.run("r1")
    assert row is not None
    assert row.status == events[-1].event.status


async def test_memory_does_not_grow_with_the_cohort(here: Site, model: ModelState) -> None:
    """One sum on the disk while uploads come, none after the end; each vector is gone before the first share comes."""
    _, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    exchange = here.application.queue.exchange
    assert isinstance(exchange, SecureExchange)
    spool = here.services.settings.spool_dir
    *others, last = members
    for member in others:
        await member.upload()
        assert [path.stat().st_size for path in spool.iterdir()] == [exchange.encoding.words * 8]
    await last.upload()
    await members[0].get("survivors")
    objects = here.services.settings.data_dir / exchange.context.key
    assert len(list((objects / "sums").iterdir())) == 1
    await asyncio.gather(*(member.sign() for member in members))
    await members[0].get("consistency")
    assert [path.name for path in objects.iterdir()] == ["sums"]
    assert [path.stat().st_size for path in spool.iterdir()] in ([], [exchange.encoding.words * 8])
    await asyncio.gather(*(member.unmask() for member in members))
    await asked
    assert list(spool.iterdir()) == []


def test_a_sum_in_a_file_is_masked_as_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sum_file, "RANGE_WORDS", 100)
    terms = [MaskTerm(sign=1, seed=Secret(bytes([number]) * 32)) for number in range(3)]
    here = SumFile(spool(tmp_path).create())
    here.allocate(250)
    np.arange(250, dtype="<u8").tofile(tmp_path / "vector")
    here.add(tmp_path / "vector", threads=1)
    here.apply_masks(terms, threads=2)
    expected = np.arange(250, dtype=np.uint64)
    apply_masks(expected, terms)
    words = here.mapped()
    np.testing.assert_array_equal(words.words, expected)
    words.free_memory()
    np.testing.assert_array_equal(words.words, expected)
    np.testing.assert_array_equal(here.beginning(), expected[:32])
    here.discard()
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_a_sum_has_its_place_on_the_disk_before_anything_is_added(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: int) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr("os.posix_fallocate", fails)
    here = SumFile(spool(tmp_path).create())
    if code == errno.ENOSPC:
        with pytest.raises(StorageFull):
            here.allocate(8)
    else:
        here.allocate(8)
        assert here.path.read_bytes() == bytes(64)


@pytest.mark.parametrize("how", ["cancelled", "ended"])
async def test_a_sum_that_nobody_waits_for_leaves_no_file(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(self: SumFile, words: int) -> None:
        begun.set()
        go_on.wait()

    monkeypatch.setattr(SumFile, "allocate", slowly)
    services: Any = SimpleNamespace(spool=spool(tmp_path), randomness=bytes)
    total = MaskedSum(services, "r1", 1, key="k", words=8)
    total.open()
    keeping = asyncio.create_task(total.save())
    await asyncio.to_thread(begun.wait)
    if how == "cancelled":
        keeping.cancel()
    total.free()
    go_on.set()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else RoundFailed):
        await keeping
    assert list((tmp_path / "spool").iterdir()) == []


def spool(folder: Path) -> Spool:
    made = Spool(folder=folder / "spool", reserve_bytes=0)
    made.clear()
    return made


def floats(count: int) -> Layout:
    return Layout(specs=(TensorSpec(name="w", dtype="F32", shape=(count,)),))


@pytest.mark.parametrize(("aggregation", "models"), [("secure", 4), ("plain", 5)])
async def test_a_run_that_the_disk_has_no_room_for_is_refused_before_its_model_is_written(
    here: Site, aggregation: str, models: int
) -> None:
    run, app = await here.begin({"aggregation": aggregation})
    app.ask_for_room(floats(1 << 50), 3)
    ended = await here.follow(run)
    assert (ended.status, ended.model) == (RunStatus.FAILED, None)
    assert f"{models * (1 << 52) // 10**9}" in ended.reason
    assert app.stopped
    assert list(here.services.settings.work_dir.iterdir()) == []


async def test_a_run_that_fits_says_what_it_takes(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    app.ask_for_room(floats(1 << 25), 3)
    assert isinstance(await app.answer(), Room)
    ended = await here.finish(run, app, model)
    assert any("134 MB" in warned["line"] for warned in events_of(ended, "warning"))


def test_a_run_that_memory_has_no_room_for_is_refused() -> None:
    with pytest.raises(RunFailed) as caught:
        refuse_without_memory((1 << 29) - 1, 1 << 30)
    assert caught.value.check == "no-memory"
    for free, size in ((1 << 29, 1 << 30), (None, 1 << 30), (0, 1000)):
        refuse_without_memory(free, size)
