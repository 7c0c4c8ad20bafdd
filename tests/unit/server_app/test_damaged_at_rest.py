"""A disk that changes what was written while the server is down: the round is made again, and nobody is blamed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.members import Member
from support.serverside import Site, events_of, site, until

from fedcore.federation import FederationFolder
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from fedcore.wire.events import RunOut
from server_app.operation.integrity import prepare
from server_app.runs.app.messages import PlainReplies, Replies

ALL = [1, 2, 3, 4]
ONCE = {"max-attempts": 1}
"""What the disk does is no attempt that failed."""
Damage = Callable[[Path], None]


def two_bits(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in (3, len(content) // 2):
        content[place] ^= 0x10
    path.write_bytes(content)


def garbage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[: min(4096, len(content))] = os.urandom(min(4096, len(content)))
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def gone(path: Path) -> None:
    path.unlink()


@contextlib.asynccontextmanager
async def after_a_crash(
    federation: FederationFolder, folder: Path, first: Site, damage: Callable[[Path], None], asked: asyncio.Task[Any]
) -> AsyncIterator[Site]:
    """The server again, on what its disk has after kill -9 and the damage."""
    (folder / "again").mkdir()
    await asyncio.to_thread(shutil.copytree, folder / "data", folder / "again" / "data")
    await end(asked)
    await asyncio.to_thread(damage, folder / "again" / "data")
    async with site(federation, folder / "again") as second:
        await until(lambda: bool(second.apps) and second.apps[-1].start is not None)
        for number, member in second.members.items():
            await member.join(first.services.presence.installed[number])
            member.task = first.members[number].task
        yield second


async def repeated(second: Site, model: ModelState) -> tuple[ModelState, RunOut, dict[str, Any]]:
    """The same request again; everybody takes part in its second attempt. Model, end, why the first failed."""
    app = second.apps[-1]
    asked = asyncio.create_task(app.exchange(model, ALL))
    everybody = await second.enter_all()
    assert {member.task.attempt for member in everybody if member.task} == {2}
    plain = everybody[0].task is not None and everybody[0].task.aggregation == "plain"
    await asyncio.gather(*(member.plain() if plain else member.secure() for member in everybody))
    answer = await asked
    assert isinstance(answer, Replies | PlainReplies), answer
    run = everybody[0].task.run if everybody[0].task else ""
    mean = model if isinstance(answer, PlainReplies) else answer.replies[0].model()
    assert mean is not None
    ended = await second.finish(run, app, mean)
    assert ended.status == "finished", ended.reason
    assert events_of(ended, "blamed") == events_of(ended, "dropped") == []
    (failed,) = events_of(ended, "exchange-failed")
    assert failed["retry"] is True
    return mean, ended, failed


def updates_of(data: Path, folder: str = "updates") -> list[Path]:
    return sorted(data.glob(f"runs/*/exchanges/1/{folder}/*"))


@pytest.mark.parametrize("change", [two_bits, garbage, cut_short, gone])
async def test_a_damaged_update_is_found_and_the_round_is_made_again(
    federation: FederationFolder, tmp_path: Path, model: ModelState, change: Damage
) -> None:
    async with site(federation, tmp_path) as first:
        _, app = await first.begin(ONCE)
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = await first.enter_all()
        await asyncio.gather(*(member.secure(until="upload") for member in members))
        await asyncio.gather(*(member.upload() for member in members[:2]))

        def damage(data: Path) -> None:
            change(updates_of(data)[1])

        async with after_a_crash(federation, tmp_path, first, damage, asked) as second:
            mean, _, failed = await repeated(second, model)
            assert second.services.metrics.registry.get_sample_value(
                "fedcore_storage_errors_total", {"kind": "damaged"}
            )
    np.testing.assert_allclose(mean["weight"], model["weight"] + 1, atol=0.01)
    assert "the update of client-2 in exchange 1" in failed["reason"]
    assert "no client is at fault" in failed["reason"]


async def test_a_damaged_sum_is_found_and_the_same_clients_make_it_again(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    """Its vectors are gone by then, and whose they were has been signed."""
    async with site(federation, tmp_path) as first:
        _, app = await first.begin(ONCE)
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = await first.enter_all()
        await asyncio.gather(*(member.secure(until="sign") for member in members))
        await members[0].sign()

        def damage(data: Path) -> None:
            (path,) = updates_of(data, "sums")
            two_bits(path)

        async with after_a_crash(federation, tmp_path, first, damage, asked) as second:
            mean, _, failed = await repeated(second, model)
    np.testing.assert_allclose(mean["weight"], model["weight"] + 1, atol=0.01)
    assert "the sum of exchange 1" in failed["reason"]


@pytest.mark.parametrize("step", ["advertisement", "key-shares", "manifest", "consistency"])
async def test_a_damaged_message_is_found(
    federation: FederationFolder, tmp_path: Path, model: ModelState, step: str
) -> None:
    async with site(federation, tmp_path) as first:
        _, app = await first.begin(ONCE)
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = await first.enter_all()
        await asyncio.gather(*(member.secure(until="unmask") for member in members))

        def damage(data: Path) -> None:
            with contextlib.closing(sqlite3.connect(data / "server.sqlite3")) as database, database:
                where = "WHERE step = ? AND client = 3"
                (body,) = database.execute(f"SELECT body FROM receipts {where}", (step,)).fetchone()
                changed = bytearray(body)
                changed[len(changed) // 2] ^= 1
                database.execute(f"UPDATE receipts SET body = ? {where}", (bytes(changed), step))

        async with after_a_crash(federation, tmp_path, first, damage, asked) as second:
            mean, _, failed = await repeated(second, model)
    np.testing.assert_allclose(mean["weight"], model["weight"] + 1, atol=0.01)
    assert f"the message '{step}' of client-3 in exchange 1" in failed["reason"]


async def test_a_damaged_reply_is_found(federation: FederationFolder, tmp_path: Path, model: ModelState) -> None:
    async with site(federation, tmp_path) as first:
        _, app = await first.begin({**ONCE, "aggregation": "plain"})
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = await first.enter_all()
        await asyncio.gather(*(member.plain() for member in members[:2]))

        def damage(data: Path) -> None:
            two_bits(updates_of(data, "replies")[0])

        async with after_a_crash(federation, tmp_path, first, damage, asked) as second:
            _, _, failed = await repeated(second, model)
    assert "the reply of client-1 in exchange 1" in failed["reason"]


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
async def test_a_run_does_not_go_on_with_a_damaged_model_of_an_earlier_round(
    federation: FederationFolder, tmp_path: Path, model: ModelState, aggregation: str
) -> None:
    async with site(federation, tmp_path) as first:
        run, app = await first.begin({"aggregation": aggregation})
        asked = asyncio.create_task(app.exchange(model, ALL))
        members: list[Member] = await first.enter_all()
        await asyncio.gather(*(member.plain() if aggregation == "plain" else member.secure() for member in members))
        await asked

        def damage(data: Path) -> None:
            found = updates_of(data, "replies") or sorted(data.glob("runs/*/exchanges/1/mean"))
            two_bits(found[0])

        async with after_a_crash(federation, tmp_path, first, damage, asked) as second:
            asked = asyncio.create_task(second.apps[-1].exchange(model, ALL))
            ended = await second.follow(run)
            await end(asked)
    assert ended.status == "failed"
    assert "in exchange 1" in ended.reason or "of exchange 1" in ended.reason
    assert "no client is at fault" in ended.reason


@pytest.mark.parametrize("extra", [None, "{}", '{"forms": "forms 1.1.1.1.1"}'])
async def test_a_round_that_another_version_had_begun_is_asked_for_again(
    federation: FederationFolder, tmp_path: Path, model: ModelState, extra: str | None
) -> None:
    """No disk did that, and an upgraded server understands nothing of what was sent; those of before wrote no forms."""
    async with site(federation, tmp_path) as first:
        _, app = await first.begin(ONCE)
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = await first.enter_all()
        await asyncio.gather(*(member.secure(until="upload") for member in members))

        def upgraded(data: Path) -> None:
            with contextlib.closing(sqlite3.connect(data / "server.sqlite3")) as database, database:
                database.execute("UPDATE exchanges SET extra = ?", (extra,))

        async with after_a_crash(federation, tmp_path, first, upgraded, asked) as second:
            mean, _, failed = await repeated(second, model)
    np.testing.assert_allclose(mean["weight"], model["weight"] + 1, atol=0.01)
    assert failed["exchange"] == 1
    assert "another version of fedcore had begun" in failed["reason"]


@pytest.mark.parametrize(("table", "column"), [("exchanges", "result"), ("steps", "request"), ("closings", "gone")])
async def test_a_run_does_not_go_on_with_a_changed_text_of_the_database(
    federation: FederationFolder, tmp_path: Path, model: ModelState, table: str, column: str
) -> None:
    """A digit that the disk changed reads well: SQLite's own check sees only the structure of its pages."""
    async with site(federation, tmp_path) as first:
        run, app = await first.begin()
        asked = asyncio.create_task(app.exchange(model, ALL))
        await asyncio.gather(*(member.secure() for member in await first.enter_all()))
        await asked
        asked = asyncio.create_task(app.exchange(model, ALL))
        await asyncio.gather(*(member.secure(until="upload") for member in await first.enter_all()))
        await asyncio.to_thread(shutil.copytree, tmp_path / "data", tmp_path / "again" / "data")
        await end(asked)
    with contextlib.closing(sqlite3.connect(tmp_path / "again/data/server.sqlite3")) as database, database:
        (text,) = database.execute(f"SELECT {column} FROM {table} WHERE {column} NOTNULL ORDER BY rowid").fetchall()[-1]
        digit = next(place for place, letter in enumerate(text) if letter.isdigit())
        changed = text[:digit] + str(int(text[digit]) ^ 1) + text[digit + 1 :]
        database.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (changed, text))
    prepare(tmp_path / "again/data/server.sqlite3")
    async with site(federation, tmp_path / "again") as second:
        if table == "closings":  # those of an open exchange are read once it is asked for again
            await until(lambda: bool(second.apps) and second.apps[-1].start is not None)
            first_answer = await second.apps[-1].exchange(model, ALL)
            assert isinstance(first_answer, Replies)
            asked = asyncio.create_task(second.apps[-1].exchange(model, ALL))
        ended = await second.follow(run)
        await end(asked)
    assert ended.status == "failed"
    assert "docs/howto/troubleshooting.md" in ended.reason
