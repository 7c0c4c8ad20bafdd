"""A group on two machines as real processes: torchrun on both, one that is started and killed as a person would."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import psutil
import pytest
from support.ports import reserved_port
from support.rank_app import said, wait_until_gone, write_app

from client_app.output import Output
from client_app.ranks.elastic import ElasticGroup
from client_app.ranks.failures import AppFailed, RankFailed
from client_app.ranks.group import GroupSettings
from client_app.ranks.group_size import GroupSize
from client_app.ranks.rendezvous import Position
from fedcore.errors import AppError
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.wire.tasks import Task
from tests.support.raising import raises

ADDRESS = "127.0.0.2"


@pytest.fixture
def size() -> Iterator[GroupSize]:
    with reserved_port(ADDRESS) as port:
        yield GroupSize(nnodes=2, rdzv_endpoint=f"{ADDRESS}:{port}")


@contextmanager
def second_machine(app: Path, size: GroupSize, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`fedcore client` as on the second machine, without a kit; killed at the end, with no chance to tidy up."""
    command = [sys.executable, "-m", "fedcore", "client", "--app", str(app), "--nnodes", "2", "--node-rank", "1"]
    with (
        log.open("ab") as output,
        subprocess.Popen([*command, "--rdzv-endpoint", size.rdzv_endpoint], stdout=output, stderr=output) as process,
    ):
        try:
            yield process
        finally:
            below = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
            os.kill(process.pid, signal.SIGKILL)
    wait_until_gone(below)


def task_of(make_task: Callable[..., Task], mode: str, *, seconds: float = 600.0, rank: int = 0) -> Task:
    return make_task(run=f"{mode}{rank}", run_config={"mode": mode, "rank": rank}, seconds=seconds)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder for temporary files that the test has to itself, with a short path, as sockets need it."""
    del tmp_path  # only made before: pytest puts all its folders where the first one is
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)
        assert list(Path(folder).glob("fedcore-*/*.safetensors")) == [], "no model stays, however the agents ended"


@pytest.mark.usefixtures("temporary")
async def test_two_machines(size: GroupSize, make_task: Callable[..., Task], tmp_path: Path, log: StringIO) -> None:
    app, there = write_app(tmp_path / "app"), tmp_path / "there"
    shutil.copytree(app, there)
    other = shutil.copytree(app, tmp_path / "other")
    (other / "modes.py").write_text((app / "modes.py").read_text() + "# another version\n")
    model, out, printed = tmp_path / "global.safetensors", tmp_path / "out.safetensors", tmp_path / "printed"
    settings = GroupSettings(
        app=app,
        app_sha256=AppBundle.from_folder(app).sha256,
        client_id=1,
        node_config={"site": "north"},
        models=tmp_path,
    )
    group = ElasticGroup(settings, Output(name="client-1", stream=log), size=size)
    others = psutil.Process().children(recursive=True)  # such as the fork server of tests before this one

    async def serves(calls: int) -> None:
        done = await group.run(task_of(make_task, "ok"), model, out)
        assert (done.metrics["ranks"], done.metrics["calls"]) == (3.0, calls)
        assert (ModelState.open(out)["weight"] == ModelState.open(model)["weight"] + 1).all()

    try:
        with second_machine(other, size, printed), raises(AppError, numbers=(1,)):
            await asyncio.wait_for(group.start(), 200)
        with second_machine(there, size, printed):
            await asyncio.wait_for(group.start(), 200)
            await serves(1)
            await serves(2)
            with raises(AppFailed, match="ValueError", numbers=(1,)):  # while rank 0 waits in a collective
                await group.run(task_of(make_task, "raise", rank=1), model, out)
            await serves(1)
            with raises(RankFailed, check="rank-hung"):
                await group.run(task_of(make_task, "hang", seconds=1.0, rank=1), model, out)
            await serves(1)
        await said(log, "between two tasks; starting the group again")
    finally:
        mine = [child.pid for child in psutil.Process().children(recursive=True) if child not in others]
        await group.stop()
    wait_until_gone(mine)
    text = printed.read_text()
    assert f"waiting for machine 0 at {size.rdzv_endpoint}" in text
    assert " as north" in text, "the node config comes from machine 0"


def test_ranks_are_numbered_by_machine() -> None:
    position = Position(node=2, local_rank=1, nodes=(2, 4, 3))
    assert (position.rank, position.world_size, position.heads) == (7, 9, (0, 2, 6))
