"""`fedcore client` as a real process: signals, and what it says of an app or a server that it cannot work with."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import shutil
import signal
import sys
import termios
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.serverside import until
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.federation import provision
from fedcore.flower.app import AppBundle
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason

Script = Any  # support.scripted.Scripted

SLEEPER = """
import time
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    print("asleep for", context.run_config["seconds"], "at", context.node_config["site"], flush=True)
    time.sleep(context.run_config["seconds"])
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 10, "loss": 0.5})}
    return Message(content=RecordDict(content), reply_to=message)
"""

PYPROJECT = """
[project]
name = "sleeper"
version = "1"
[tool.flwr.app.components]
serverapp = "sleeper:app"
clientapp = "sleeper:app"
[tool.flwr.app.config]
seconds = 0.0
"""


@pytest.fixture(scope="module")
def app_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "sleeper.py").write_text(SLEEPER)
    return folder


PATIENT = """
from functools import partial
from client_app import startup
from client_app.agent.agent import Agent, Pauses
from fedcore.cli.main import main

startup.Agent = partial(Agent, pauses=Pauses(farewell=60.0))
main()
"""
"""`fedcore client`, with all the time in the world to say that it leaves."""


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", PATIENT, "client", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def read_until(process: asyncio.subprocess.Process, text: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        line = await process.stdout.readline()
        assert line, (lines, await process.stderr.read() if process.stderr else b"")
        lines.append(line.decode())
    return lines


@pytest.fixture
def sleepy(script: Script, make_task: Callable[..., Task], app_dir: Path) -> Callable[[float, int], Task]:
    def task(seconds: float, exchange: int = 1) -> Task:
        sha256 = AppBundle.from_folder(app_dir).sha256
        return make_task(run_config={"seconds": seconds}, app_sha256=sha256, exchange=exchange, run=f"r{seconds}")

    return task


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
async def test_serves_until_a_signal_and_leaves_in_good_order(
    script: Script, kit: Path, app_dir: Path, sleepy: Callable[..., Task], number: signal.Signals, status: int
) -> None:
    script.task = sleepy(0.0)
    script.tasks.append(script.task)
    async with script.serving():
        process = await start(
            *("--kit", str(kit), "--app", str(app_dir), "--node-config", "site='the north'", "--json")
        )
        lines = await read_until(process, '"stage": "done"')
        assert script.decoded.examples == 40
        script.go_on(sleepy(600.0, 2))
        script.tasks.append(script.task)
        lines += await read_until(process, "asleep for 600.0 at the north")
        worker = psutil.Process(process.pid).children()[0]
        process.send_signal(number)
        output, errors = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == status, errors
    assert errors == b""
    assert script.withdrawals[0].reason is WithdrawalReason.STOPPED
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    for line in [*lines, *output.decode().splitlines()]:
        assert json.loads(line)["client"] == "client-1"


async def test_a_terminal_that_is_closed_ends_it_with_a_goodbye(
    script: Script, kit: Path, app_dir: Path, sleepy: Callable[..., Task]
) -> None:
    """Nothing can be printed any more then."""
    terminal, side = pty.openpty()
    script.tasks.append(sleepy(600.0))
    script.task = script.tasks[0]
    async with script.serving():
        words = ("client", "--kit", kit, "--app", app_dir, "--node-config", "site='the north'")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fedcore", *map(str, words)),
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            preexec_fn=partial(fcntl.ioctl, side, termios.TIOCSCTTY, 0),
        )
        os.close(side)
        said = b""
        while b"asleep for 600.0" not in said:
            said += await asyncio.to_thread(os.read, terminal, 4096)
        os.close(terminal)
        await asyncio.wait_for(process.wait(), 100)
    assert [withdrawal.reason for withdrawal in script.withdrawals] == [WithdrawalReason.STOPPED]


async def test_under_nohup_it_outlives_the_terminal(script: Script, kit: Path, app_dir: Path) -> None:
    words = (sys.executable, "-m", "fedcore", "client", "--kit", kit, "--app", app_dir)
    async with script.serving():
        process = await asyncio.create_subprocess_exec(
            *("nohup", *map(str, words)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        await read_until(process, "connected")
        asked = len(script.polls)
        process.send_signal(signal.SIGHUP)
        await until(lambda: process.returncode is not None or len(script.polls) > asked + 3)
        assert process.returncode is None
        process.terminate()
        await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0


async def test_a_server_of_another_authority(script: Script, kit: Path, app_dir: Path, tmp_path: Path) -> None:
    other = provision(tmp_path / "other", name="testing", clients=4, now=datetime.now(UTC))
    shutil.copy(other.clients[0] / "ca.crt", kit / "ca.crt")
    async with script.serving():
        process = await start("--kit", str(kit), "--app", str(app_dir))
        _, errors = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 3
    assert b"ca.crt" in errors


def test_an_app_that_does_not_load(kit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "sleeper.py").write_text("1 / 0\n")
    result = CliRunner().invoke(app, ["client", "--kit", str(kit), "--app", str(folder)])
    assert result.exit_code == 2
    assert result.stderr.strip().splitlines()[-1].endswith("rank 0 raised ZeroDivisionError: division by zero")
