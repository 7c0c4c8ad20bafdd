"""Work for later sums: the agent trains beside all else, keeps one update, and gives it to one sum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from support.agents import agent_running, until
from support.encodings import encoding_to_json
from support.scripted import problem

from client_app.exchange.client import Client
from client_app.records.activity import read_activity
from client_app.records.pending_update import PendingUpdate
from fedcore.codec import CodecSettings, first_encoding
from fedcore.errors import AppError
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.wire.presence import WORK_HEADER, WORK_OVER, WorkState
from fedcore.wire.tasks import Buffer, Task, Version

Script = Any  # support.scripted.Scripted
SETTINGS = JobSettings(w_max=100, asynchrony="buffered", buffer_size=4).for_clients()


@pytest.fixture
def work(make_task: Callable[..., Task]) -> Callable[..., Task]:
    """Work from a version of the script's run."""

    def make(number: int = 0, **changes: Any) -> Task:
        made = make_task(settings=SETTINGS, quorum=1, protection=None, encoding=None)
        return made.model_copy(update={"version": Version(number=number, sha256=made.model_sha256), **changes})

    return make


@pytest.fixture
def summed(script: Script, make_task: Callable[..., Task]) -> Callable[..., Task]:
    """The sum that client 1's update is asked for; the others trained from the same model."""

    def make(start: int = 0, newest: int = 0, **changes: Any) -> Task:
        plain = make_task()
        starts = [Version(number=start, sha256=plain.model_sha256)] * 4
        script.go_on(make_task(settings=SETTINGS, buffer=Buffer(newest=newest, starts=starts), **changes))
        task: Task = script.task
        return task

    return make


async def test_trains_beside_its_polls_and_gives_its_update_to_a_sum(
    script: Script, client: Client, work: Callable[..., Task], summed: Callable[..., Task]
) -> None:
    client.work.goes_on = asyncio.Event()
    script.tasks.append(work())
    async with script.serving(), agent_running(client) as running:
        await until(lambda: client.work.calls == 1, running)
        polls = len(script.polls)
        await until(lambda: len(script.polls) > polls + 1, running)
        assert (script.polls[-1]["work"], script.polls[-1]["version"]) == (script.task.run, "0")
        assert script.told == []
        now = read_activity(client.state_dir)
        assert (now.doing, now.run) == ("training", script.task.run)
        client.work.goes_on.set()
        await until(lambda: script.told, running)
        assert read_activity(client.state_dir).doing == "waiting"
        assert [said.state for said in script.told] == [WorkState.READY]
        script.tasks.append(summed(start=0, newest=0))
        await until(lambda: script.decoded, running)
    base = ModelState.open(script.model)
    moved = (1 + 3 * 2) / 4  # client 1 by 1, the script's peers by 2
    assert script.decoded.state["weight"] - base["weight"] == pytest.approx(np.full((20, 50), moved), abs=1e-3)
    assert client.work.calls == 1
    assert client.pending.base_version(script.task.run) is not None, "for the very same sum"
    assert client.pending.status_message() is None


async def test_an_update_waits_through_a_restart_and_a_training_does_not(
    script: Script, client: Client, work: Callable[..., Task], summed: Callable[..., Task]
) -> None:
    script.tasks.append(work(0))
    async with script.serving():
        async with agent_running(client) as running:
            await until(lambda: script.told, running)
        again = replace(client, pending=PendingUpdate(client.state_dir))
        await script.ask_next(summed(start=0, newest=0))
        async with agent_running(again) as running:
            await until(lambda: script.decoded, running)
            said = script.joined_with.work
            assert (said.version.number, said.state) == (0, WorkState.READY)
        assert client.work.calls == 1
        again.work.goes_on = asyncio.Event()
        await script.ask_next(work(1))
        async with agent_running(again) as running:
            await until(lambda: again.work.calls == 2, running)
            assert again.pending.status_message().state is WorkState.TRAINING
        assert again.work.cancelled
        third = replace(client, pending=PendingUpdate(client.state_dir))
        joins = script.joins
        async with agent_running(third) as running:
            await until(lambda: script.joins > joins, running)
            assert script.joined_with.work is None
    assert not (client.state_dir / "work").exists()


@pytest.mark.parametrize("name", ["work/held.json", "work/local.safetensors", "models/work/base.safetensors"])
async def test_an_update_that_the_disk_changed_goes_into_no_sum(
    script: Script, client: Client, work: Callable[..., Task], name: str
) -> None:
    """A bit in a number of the model reads well; the server asks for the work again."""
    script.tasks.append(work(0))
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.told, running)
    assert PendingUpdate(client.state_dir).answer is not None
    path = client.state_dir / name
    content = path.read_bytes()
    examples = content.rfind(b'"examples":') + len(b'"examples":')
    place = examples if path.suffix == ".json" else len(content) - 1
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert PendingUpdate(client.state_dir).answer is None
    assert not (client.state_dir / "work").exists()


async def test_newer_work_takes_the_place_of_older(script: Script, client: Client, work: Callable[..., Task]) -> None:
    client.work.goes_on = asyncio.Event()
    script.tasks.append(work(1))
    async with script.serving(), agent_running(client) as running:
        await until(lambda: client.work.calls == 1, running)
        script.tasks.append(work(2))
        await until(lambda: client.work.calls == 2, running)
        client.work.goes_on.set()
        await until(lambda: script.told, running)
        script.tasks.append(work(14))
        await until(lambda: len(script.told) == 2, running)
    assert [said.version.number for said in script.told] == [2, 14]
    said = client.output.stream.getvalue()
    assert said.count("stopped training on version 1: superseded by newer work") == 1
    assert said.count("discarded the update trained on version 2: superseded by newer work") == 1


async def test_a_failure_is_ready_and_adds_nothing(
    script: Script,
    client: Client,
    work: Callable[..., Task],
    summed: Callable[..., Task],
    log: StringIO,
    allow: Callable[..., Client],
) -> None:
    client = allow(client, report_failures=False)
    client.work.error = AppError("patient 17")
    script.tasks.append(work())
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.told, running)
        assert (script.told[0].state, script.told[0].withdrawal) == (WorkState.READY, None)
        layout = ModelState.open(script.model).layout
        encoding = encoding_to_json(first_encoding(CodecSettings(w_max=100), layout, 4, failures=1))
        script.tasks.append(summed(encoding=encoding))
        await until(lambda: script.decoded, running)
    assert script.decoded.examples == 30
    assert "patient 17" in log.getvalue()


async def test_an_owner_that_reports_failures_gives_up(
    script: Script, client: Client, work: Callable[..., Task], allow: Callable[..., Client]
) -> None:
    client = allow(client, report_failures=True)
    client.work.error = AppError("no records")
    script.tasks.append(work())
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.told, running)
    assert script.told[0].state is WorkState.GIVEN_UP
    assert script.told[0].withdrawal.reason == "wrong-records"
    assert client.pending.status_message() is None


async def test_a_version_that_a_server_does_not_know_to_have_given_out_may_be_asked_for_again(
    script: Script, client: Client, work: Callable[..., Task]
) -> None:
    """The server starts again while the client downloads the version's model."""
    script.lies["model"] = lambda content: problem(404, "not-found", "not asked any more")
    script.tasks.append(work(3))
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.told, running)
        assert (script.told[0].state, script.told[0].withdrawal) == (WorkState.GIVEN_UP, None)
        del script.lies["model"]
        polls = len(script.polls)
        await until(lambda: len(script.polls) > polls + 1, running)
        assert "work" not in script.polls[-1], "the server would not give it the same version"
        script.tasks.append(work(3))
        await until(lambda: len(script.told) == 2, running)
    assert script.told[1].state is WorkState.READY


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"seconds": 1e9}, "too-long"),
        ({"app_sha256": "cd" * 32}, "app-mismatch"),
        ({"version": Version(number=0, sha256="ab" * 32)}, "start-mismatch"),
        ({"settings": JobSettings(w_max=100).for_clients()}, "buffer-off-settings"),
    ],
)
async def test_work_is_checked_as_a_task_is(
    script: Script, client: Client, work: Callable[..., Task], changes: dict[str, Any], check: str
) -> None:
    script.tasks.append(work(**changes))
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.told, running)
    assert script.told[0].state is WorkState.GIVEN_UP
    assert script.told[0].withdrawal.check == check
    assert client.work.calls == 0


async def test_a_sum_from_another_start_is_refused_and_the_update_stays(
    script: Script, client: Client, work: Callable[..., Task], summed: Callable[..., Task]
) -> None:
    script.tasks.append(work(3))
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.told, running)
        script.tasks.append(summed(start=4, newest=4))
        await until(lambda: script.withdrawals, running)
        assert script.withdrawals[0].check == "start-mismatch"
        assert client.pending.status_message().state is WorkState.READY


async def test_training_ends_with_the_run_that_it_was_for(
    script: Script, client: Client, work: Callable[..., Task]
) -> None:
    client.work.goes_on = asyncio.Event()
    script.tasks.append(work())
    async with script.serving(), agent_running(client) as running:
        await until(lambda: client.work.calls == 1, running)
        script.no_task[WORK_HEADER] = WORK_OVER
        await until(lambda: client.work.cancelled, running)
        polls = len(script.polls)
        await until(lambda: len(script.polls) > polls + 1, running)
    assert client.pending.status_message() is None
    assert script.told == []
    said = client.output.stream.getvalue()
    assert said.count(f"stopped training: run {script.task.run} has ended") == 1
