"""The worker as a real process with a real Flower app: warm, printing, failing, killed, hanging, orphaned."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import psutil
import pytest

from client_app.output import Output
from client_app.workers import AppFailed, Worker, WorkerSettings
from fedcore.errors import AppError, WorkerDied
from fedcore.flower.bundle import AppBundle
from fedcore.state import ModelState
from fedcore.wire import Task

MODES = """
import os, signal, subprocess, sys, time
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
calls = 0

@app.train()
def train(message, context):
    global calls
    calls += 1
    mode = context.run_config["mode"]
    if mode == "raise":
        raise ValueError("patient 4711 has no age")
    if mode == "exit":
        sys.exit(3)
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang":
        print("child", subprocess.Popen(["sleep", "600"]).pid)
        time.sleep(600)
    print("data in", os.environ.get("FEDCORE_DATA"), "as", context.node_config["site"])
    arrays = {name: array.numpy() + 1 for name, array in message.content["arrays"].items()}
    metrics = MetricRecord({"num-examples": 7, "calls": float(calls), "pid": float(os.getpid())})
    content = {"arrays": ArrayRecord({k: v for k, v in _arrays(arrays)}), "metrics": metrics}
    if mode == "wrong-records":
        content["more"] = MetricRecord({"num-examples": 7})
    return Message(content=RecordDict(content), reply_to=message)

def _arrays(arrays):
    from flwr.app import Array
    return [(name, Array(value)) for name, value in arrays.items()]
"""

PYPROJECT = """
[project]
name = "modes"
version = "1"
[tool.flwr.app.components]
serverapp = "modes:app"
clientapp = "modes:app"
[tool.flwr.app.config]
mode = "ok"
"""


@pytest.fixture(scope="module")
def app_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "modes.py").write_text(MODES)
    return folder


@pytest.fixture
def settings(app_dir: Path, tmp_path: Path) -> WorkerSettings:
    return WorkerSettings(
        app=app_dir,
        app_sha256=AppBundle.from_folder(app_dir).sha256,
        client_id=1,
        node_config={"site": "north"},
        data_dir=tmp_path,
    )


@pytest.fixture
async def worker(settings: WorkerSettings, log: StringIO) -> AsyncIterator[Worker]:
    worker = Worker(settings, Output(name="client-1", stream=log))
    yield worker
    await worker.stop()


@pytest.fixture
def task(make_task: Callable[..., Task]) -> Callable[..., Task]:
    def in_mode(mode: str, **changes: object) -> Task:
        return make_task(run=mode, run_config={"mode": mode}, **changes)

    return in_mode


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


async def test_stays_warm_and_survives_what_the_app_raises(
    worker: Worker, task: Callable[..., Task], tmp_path: Path, log: StringIO
) -> None:
    model, out = tmp_path / "global.safetensors", tmp_path / "out.safetensors"
    first = await worker.run(task("ok"), model, out)
    assert (first.examples, first.trained, first.metrics["calls"]) == (7, True, 1.0)
    base = ModelState.open(model)
    for name, value in ModelState.open(out).items():
        assert (value == base[name] + 1).all()
    assert f"data in {tmp_path} as north" in log.getvalue()

    with pytest.raises(AppFailed, match="the app raised ValueError: patient 4711") as caught:
        await worker.run(task("raise"), model, out)
    assert 'raise ValueError("patient' in caught.value.traceback  # the line, for the client's own log
    with pytest.raises(AppFailed, match="SystemExit: 3"):
        await worker.run(task("exit"), model, out)
    with pytest.raises(AppError, match="exactly one MetricRecord") as wrong:
        await worker.run(task("wrong-records"), model, out)
    assert not isinstance(wrong.value, AppFailed)

    last = await worker.run(task("ok"), model, out)
    assert last.metrics["pid"] == first.metrics["pid"] == worker.pid
    assert last.metrics["calls"] == 5.0


async def test_a_killed_worker_is_replaced(worker: Worker, task: Callable[..., Task], tmp_path: Path) -> None:
    model, out = tmp_path / "global.safetensors", tmp_path / "out.safetensors"
    with pytest.raises(WorkerDied, match="SIGKILL"):
        await worker.run(task("kill"), model, out)
    assert (await worker.run(task("ok"), model, out)).examples == 7


async def test_a_hanging_worker_is_ended_with_what_it_started(
    worker: Worker, task: Callable[..., Task], tmp_path: Path, log: StringIO
) -> None:
    await worker.start()
    pid = worker.pid
    assert pid is not None
    with pytest.raises(WorkerDied, match="no answer within 1 s"):
        await worker.run(task("hang", seconds=1.0), tmp_path / "global.safetensors", tmp_path / "out")
    child = int(log.getvalue().split("child ")[1].split()[0])
    wait_until_gone(pid)
    wait_until_gone(child)


async def test_a_cancelled_task_ends_the_worker(worker: Worker, task: Callable[..., Task], tmp_path: Path) -> None:
    await worker.start()
    pid = worker.pid
    assert pid is not None
    running = asyncio.create_task(worker.run(task("hang"), tmp_path / "global.safetensors", tmp_path / "out"))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    wait_until_gone(pid)


async def test_an_app_that_changed_is_not_run(settings: WorkerSettings) -> None:
    worker = Worker(replace(settings, app_sha256="0" * 64), Output(name="client-1", stream=StringIO()))
    with pytest.raises(AppError, match="was changed while the agent ran"):
        await worker.start()
    assert worker.pid is None


async def test_an_app_that_does_not_load(settings: WorkerSettings, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "modes.py").write_text("import no_such_module_anywhere\n")
    worker = Worker(replace(settings, app=folder), Output(name="client-1", stream=StringIO()))
    with pytest.raises(AppError, match="no_such_module_anywhere"):
        await worker.start()


AGENT = """
import asyncio, sys
from pathlib import Path
from client_app.output import Output
from client_app.workers import Worker, WorkerSettings

async def main():
    settings = WorkerSettings(app=Path(sys.argv[1]), app_sha256=sys.argv[2], client_id=1, node_config={})
    worker = Worker(settings, Output(name="orphan"))
    await worker.start()
    print("pid", worker.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_worker_does_not_outlive_a_killed_agent(settings: WorkerSettings) -> None:
    command = [sys.executable, "-c", AGENT, str(settings.app), settings.app_sha256]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline().split()[1])
        assert alive(pid)
        os.kill(agent.pid, signal.SIGKILL)
    wait_until_gone(pid)
