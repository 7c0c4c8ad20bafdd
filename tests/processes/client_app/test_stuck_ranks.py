"""Ranks that are stuck in a loop over batches, and ranks that only look so, as real processes with a real app."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.deployment import wait_until
from support.forked_ranks import spawn
from support.rank_app import wait_until_gone

from client_app.output import Output
from client_app.ranks.failures import RankFailed
from client_app.ranks.group import GroupSettings
from client_app.ranks.supervisor import LocalGroup
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.wire.tasks import Task
from tests.support.raising import raises

PROGRESS_SECONDS = 8.0
"""A step of half a second on a busy machine is not to be taken for none."""
PYPROJECT = """
[project]
name = "stuck"
version = "1"
[tool.flwr.app.components]
serverapp = "stuck:app"
clientapp = "stuck:app"
[tool.flwr.app.config]
mode = "ok"
"""
APP = """
import os, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from fedcore import local_app
from fedcore.data import Split
from fedcore.training import OptimizerConfig, counted_steps, train

DATA = Split(x=np.ones((32, 6), np.float32), y=np.zeros(32, np.int64))
ROWS = TensorDataset(torch.ones(32, 6), torch.zeros(32, dtype=torch.int64))

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.mode, self.calls = nn.Linear(6, 3), "ok", 0

    def forward(self, x):
        self.calls += 1
        if self.mode == "sleeps" and self.calls == 3:
            time.sleep(600)
        if self.mode == "steady":
            time.sleep(0.7)
        return self.layer(x)

def fit(engine, job):
    mode = str(job.config["mode"])
    engine.module.mode, engine.module.calls = mode, 0
    if mode == "computes":  # on its own, and after a loop that has ended
        train(engine, DATA, batch_size=8, epochs=1, seed=1)
        print("after the loop", flush=True)
        time.sleep(SECONDS)
    elif mode == "prepared":
        model, optimizer, loader = engine.prepare(engine.model, engine.optimizer, DataLoader(ROWS, batch_size=2))
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if engine.module.calls == 10:
                time.sleep(600)
    elif mode == "counted":
        for number in counted_steps(range(9)):
            time.sleep(600 if number == 4 else 0)
    else:
        train(engine, DATA, batch_size=2, epochs=1000 if mode == "endless" else 1, seed=1)
    return {"num-examples": 32, "loss": 0.0}

app = local_app(model=lambda config: Slow(), optimizer=lambda config: OptimizerConfig(lr=0.1), train=fit, evaluate=fit)
""".replace("SECONDS", str(1.5 * PROGRESS_SECONDS))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stuck")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "stuck.py").write_text(APP)
    return folder


@pytest.fixture
def steps() -> list[int]:
    """The numbers of steps that the group told of."""
    return []


@pytest.fixture
async def group(app: Path, tmp_path: Path, log: StringIO, steps: list[int]) -> AsyncIterator[LocalGroup]:
    settings = GroupSettings(
        app=app,
        app_sha256=AppBundle.from_folder(app).sha256,
        client_id=1,
        node_config={},
        data_dir=tmp_path,
        progress_seconds=PROGRESS_SECONDS,
    )
    output = Output(name="client-1", stream=log)
    group = LocalGroup(settings, output, start_rank=spawn, on_progress=lambda number, still: steps.append(number))
    yield group
    await group.stop()


@pytest.fixture
def task(make_task: Callable[..., Task]) -> Callable[..., Task]:
    def in_mode(mode: str, **config: Any) -> Task:
        return make_task(run=mode, run_config={"mode": mode, **config}, seconds=900.0)

    return in_mode


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "global.safetensors"
    arrays = {"layer.weight": np.zeros((3, 6), np.float32), "layer.bias": np.zeros(3, np.float32)}
    ModelState.from_arrays(arrays).save(path)
    return path


@pytest.mark.parametrize(("mode", "least"), [("sleeps", 3), ("prepared", 10), ("counted", 5)])
async def test_an_app_that_sleeps_for_ever_in_a_step(
    group: LocalGroup, task: Callable[..., Task], model: Path, tmp_path: Path, mode: str, least: int
) -> None:
    await group.start()
    ended, began = group.pids, time.monotonic()
    with raises(RankFailed, check="rank-hung", numbers=(0, least)):
        await group.run(task(mode), model, tmp_path / "out.safetensors")
    assert PROGRESS_SECONDS <= time.monotonic() - began < 300.0, "not the time of the task"
    wait_until_gone(ended)
    assert (await group.run(task("ok"), model, tmp_path / "out.safetensors")).trained


async def test_who_goes_on_may_take_longer(
    group: LocalGroup, task: Callable[..., Task], model: Path, tmp_path: Path, steps: list[int]
) -> None:
    """Steps that each take half a second; and work without steps, of which only the deadline counts."""
    await group.start()
    began = time.monotonic()
    assert (await group.run(task("steady"), model, tmp_path / "out.safetensors")).trained
    assert time.monotonic() - began > PROGRESS_SECONDS
    assert steps == sorted(steps)
    assert len(set(steps)) > 3
    assert (await group.run(task("computes"), model, tmp_path / "out.safetensors")).trained


async def test_the_rank_that_is_stopped_is_named_and_not_who_waits_for_it(
    group: LocalGroup, task: Callable[..., Task], model: Path, tmp_path: Path, steps: list[int]
) -> None:
    group.settings = replace(group.settings, ranks=2)
    await group.start()
    pids = group.pids
    running = asyncio.create_task(group.run(task("endless"), model, tmp_path / "out.safetensors"))
    await asyncio.to_thread(wait_until, "steps", lambda: bool(steps))
    os.kill(pids[1], signal.SIGSTOP)
    with raises(RankFailed, check="rank-hung") as caught:
        await running
    assert str(caught.value).startswith("rank 1 "), str(caught.value)
    wait_until_gone(pids)
    steps.clear()
    assert (await group.run(task("ok"), model, tmp_path / "out.safetensors")).trained
