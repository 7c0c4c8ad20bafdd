"""The group of ranks as real processes with a real Flower app: warm, printing, failing, killed, hanging, orphaned."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from support.forked_ranks import spawn
from support.rank_app import PYPROJECT, alive, said, wait_until_gone, write_app

from client_app.output import Output
from client_app.ranks.failures import AppFailed, RankFailed
from client_app.ranks.group import GroupSettings
from client_app.ranks.supervisor import LocalGroup
from fedcore.errors import AppError
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.wire.tasks import Task
from tests.support.raising import raises

SUM_OF_TWO = 3.0  # 1 of rank 0 and 2 of rank 1


@pytest.fixture(scope="module")
def app_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_app(tmp_path_factory.mktemp("app"))


@pytest.fixture
def settings(app_dir: Path, tmp_path: Path) -> GroupSettings:
    return GroupSettings(
        app=app_dir,
        app_sha256=AppBundle.from_folder(app_dir).sha256,
        client_id=1,
        node_config={"site": "north"},
        data_dir=tmp_path,
    )


@pytest.fixture
async def group(settings: GroupSettings, log: StringIO) -> AsyncIterator[LocalGroup]:
    group = LocalGroup(settings, Output(name="client-1", stream=log))
    yield group
    await group.stop()


@pytest.fixture
async def pair(settings: GroupSettings, log: StringIO) -> AsyncIterator[LocalGroup]:
    group = LocalGroup(replace(settings, ranks=2), Output(name="client-1", stream=log), start_rank=spawn)
    yield group
    await group.stop()


@pytest.fixture
def task(make_task: Callable[..., Task]) -> Callable[..., Task]:
    def in_mode(mode: str, *, seconds: float = 600.0, **config: Any) -> Task:
        return make_task(run=f"{mode}{config}", run_config={"mode": mode, **config}, seconds=seconds)

    return in_mode


async def test_one_process_stays_warm_and_survives_what_the_app_raises(
    group: LocalGroup, task: Callable[..., Task], tmp_path: Path, log: StringIO
) -> None:
    model, out = tmp_path / "global.safetensors", tmp_path / "out.safetensors"
    first = await group.run(task("ok"), model, out)
    assert (first.examples, first.trained, first.metrics["calls"]) == (7, True, 1.0)
    base = ModelState.open(model)
    for name, value in ModelState.open(out).items():
        assert (value == base[name] + 1).all()
    await said(log, f"data in {tmp_path} as north")

    with raises(AppFailed, match="ValueError.*4711", numbers=(0,)) as caught:
        await group.run(task("raise"), model, out)
    assert 'raise ValueError("patient' in caught.value.traceback  # the line, for the client's own log
    with pytest.raises(AppFailed, match="SystemExit: 3"):
        await group.run(task("exit"), model, out)
    with pytest.raises(AppError, match="MetricRecord") as wrong:
        await group.run(task("wrong-records"), model, out)
    assert not isinstance(wrong.value, AppFailed)

    last = await group.run(task("ok"), model, out)
    assert last.metrics["pid"] == first.metrics["pid"], "by its own number, which may be one of a namespace"
    assert last.metrics["calls"] == 5.0

    with raises(RankFailed, check="rank-killed", match="SIGKILL", numbers=(0,)):
        await group.run(task("kill"), model, out)
    assert (await group.run(task("ok"), model, out)).metrics["calls"] == 1.0


async def test_two_ranks_fail_in_every_way_and_serve_the_next_task(
    pair: LocalGroup, task: Callable[..., Task], tmp_path: Path, log: StringIO
) -> None:
    model, out = tmp_path / "global.safetensors", tmp_path / "out.safetensors"

    async def serves() -> None:
        """Two tasks by the same two processes, and the state is written once."""
        first = await pair.run(task("ok"), model, out)
        pids = pair.pids
        second = await pair.run(task("ok"), model, out)
        assert pair.pids == pids
        assert (first.metrics["ranks"], second.metrics["ranks"]) == (SUM_OF_TWO, SUM_OF_TWO)
        assert (first.metrics["calls"], second.metrics["calls"]) == (1.0, 2.0)
        assert (ModelState.open(out)["weight"] == ModelState.open(model)["weight"] + 1).all()

    async def fails(kind: type[Exception], check: str, text: str, broken: Task, before: Task | None = None) -> None:
        await serves()
        if before is not None:
            await pair.run(before, model, out)
        ended = pair.pids
        with raises(kind, check=check, match=text) as caught:
            await pair.run(broken, model, out)
        assert caught.value.check == check
        wait_until_gone(ended)

    # Rank 1 would wait in its collective for ever.
    await fails(AppFailed, "rank-exception", r"\b0\b.*ValueError", task("raise"))
    await fails(AppFailed, "rank-exception", r"\b0\b.*ValueError", task("raise", late=True))
    # Rank 0 waits in a collective for rank 1.
    await fails(RankFailed, "out-of-memory", r"\b1\b", task("memory", rank=1))
    await fails(AppFailed, "rank-exception", r"\b1\b.*RuntimeError", task("loader", rank=1))
    hangs, parent = task("hang", rank=1, seconds=1.0), task("parent", rank=1)
    await fails(RankFailed, "rank-hung", r"\b0, 1\b.*\b1\b", hangs, before=parent)
    await said(log, "child ")
    wait_until_gone([int(log.getvalue().split("child ")[1].split()[0])])
    await serves()


async def test_ranks_killed_from_outside(
    pair: LocalGroup, task: Callable[..., Task], tmp_path: Path, log: StringIO
) -> None:
    model, out = tmp_path / "global.safetensors", tmp_path / "out"
    computing = asyncio.create_task(pair.run(task("compute"), model, out))
    await said(log, "computing")
    pids = pair.pids
    os.kill(pids[1], signal.SIGKILL)
    with raises(RankFailed, check="rank-killed", match="SIGKILL", numbers=(1,)):
        await computing
    wait_until_gone(pids)

    await pair.start()
    os.kill(pair.pids[0], signal.SIGTERM)
    await said(log, "rank 0 ended by SIGTERM between two tasks")
    assert (await pair.run(task("ok"), model, out)).metrics["ranks"] == SUM_OF_TWO

    log.truncate(log.seek(0))
    computing = asyncio.create_task(pair.run(task("compute"), model, out))
    await said(log, "computing")
    pids = pair.pids
    computing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await computing
    wait_until_gone(pids)


async def test_a_start_that_is_given_up_leaves_no_process(group: LocalGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment at which the process exists and is not registered yet."""
    reached = asyncio.Event()
    start = asyncio.create_subprocess_exec
    started: list[asyncio.subprocess.Process] = []

    async def started_and_not_told(*command: str, **options: Any) -> None:
        started.append(await start(*command, **options))
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started_and_not_told)
    starting = asyncio.create_task(group.start())
    await reached.wait()
    await group.stop()
    wait_until_gone([started[0].pid])
    await asyncio.wait([starting])
    assert starting.cancelled()
    await started[0].communicate()  # it has ended, and its pipe is closed while there is a loop to close it


async def test_an_app_that_changed_is_not_run(settings: GroupSettings) -> None:
    output = Output(name="client-1", stream=StringIO())
    group = LocalGroup(replace(settings, app_sha256="0" * 64), output, start_rank=spawn)
    with pytest.raises(AppError, match=re.escape(str(settings.app))):
        await group.start()
    assert group.pids == ()


async def test_an_app_that_does_not_load(settings: GroupSettings, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "modes.py").write_text("import no_such_module_anywhere\n")
    output = Output(name="client-1", stream=StringIO())
    group = LocalGroup(replace(settings, app=folder, ranks=2), output, start_rank=spawn)
    with pytest.raises(AppError, match="no_such_module_anywhere"):
        await group.start()


AGENT = """
import asyncio, sys
from pathlib import Path
from client_app.ranks.group import GroupSettings
from client_app.output import Output
from client_app.ranks.supervisor import LocalGroup

async def main():
    settings = GroupSettings(app=Path(sys.argv[1]), app_sha256=sys.argv[2], client_id=1, node_config={}, ranks=2)
    group = LocalGroup(settings, Output(name="orphan"))
    await group.start()
    print("pids", *group.pids, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_no_rank_outlives_a_killed_agent(settings: GroupSettings) -> None:
    command = [sys.executable, "-c", AGENT, str(settings.app), settings.app_sha256]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        try:
            told = next(line for line in agent.stdout if line.startswith("pids"))
            pids = [int(word) for word in told.split()[1:]]
            assert len(pids) == 2
            assert all(alive(pid) for pid in pids)
        finally:
            agent.kill()
    wait_until_gone(pids)
