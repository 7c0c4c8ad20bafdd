"""`fedcore client` as a person meets it: a real process with signals, and what it says about bad input."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from client_app.ledger import FolderLock
from client_app.main import app
from fedcore.federation import Federation, provision
from fedcore.flower.bundle import AppBundle
from fedcore.wire import Task, WithdrawalReason

Script = Any  # tests/unit/client_app/conftest.py

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


@pytest.fixture
def kit(federation: Federation, tmp_path: Path) -> Path:
    """A copy of client 1's kit, for the test to spoil."""
    folder = tmp_path / "kit"
    shutil.copytree(federation.clients[0], folder)
    return folder


def fails(kit: Path, app_dir: Path, *more: str) -> tuple[int, str]:
    """Run the command in this process; returns the exit status and the one line on standard error."""
    result = CliRunner().invoke(app, ["--kit", str(kit), "--app", str(app_dir), *more])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr.strip()


PATIENT = """
from functools import partial
from client_app import main
from client_app.agent import Agent, Pauses

main.Agent = partial(Agent, pauses=Pauses(farewell=60.0))
main.app()
"""
"""`fedcore client`, with all the time in the world to say that it leaves."""


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", PATIENT, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def read_until(process: asyncio.subprocess.Process, text: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(100):
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
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
        script.task, script._round, script._polled = sleepy(600.0, 2), None, {}
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


class TestBadInput:
    def test_a_kit_that_is_not_there(self, app_dir: Path, tmp_path: Path) -> None:
        status, message = fails(tmp_path / "nowhere", app_dir)
        assert status == 2
        assert "nowhere" in message
        assert len(message.splitlines()) == 1

    def test_an_identity_that_others_can_read(self, kit: Path, app_dir: Path) -> None:
        (kit / "identity.key").chmod(0o644)
        status, message = fails(kit, app_dir)
        assert status == 2
        assert "identity.key" in message

    def test_an_unknown_key_in_the_policy(self, kit: Path, app_dir: Path) -> None:
        with (kit / "policy.toml").open("a") as file:
            file.write("min-cohrt = 1\n")
        status, message = fails(kit, app_dir)
        assert status == 2
        assert "did you mean 'min-cohort'" in message

    def test_another_app_than_the_agreed_one(self, kit: Path, app_dir: Path) -> None:
        text = (kit / "policy.toml").read_text().replace('app-sha256 = ""', f'app-sha256 = "{"0" * 64}"')
        (kit / "policy.toml").write_text(text)
        status, message = fails(kit, app_dir)
        assert status == 2
        assert "agrees to the app 000000000000" in message
        assert AppBundle.from_folder(app_dir).sha256 in message

    def test_a_folder_that_is_no_app(self, kit: Path, tmp_path: Path) -> None:
        status, message = fails(kit, tmp_path)
        assert status == 2
        assert "not a Flower app" in message

    def test_an_app_that_does_not_load(self, kit: Path, tmp_path: Path) -> None:
        folder = tmp_path / "broken"
        folder.mkdir()
        (folder / "pyproject.toml").write_text(PYPROJECT)
        (folder / "sleeper.py").write_text("1 / 0\n")
        status, message = fails(kit, folder)
        assert status == 2
        assert message.splitlines()[-1].endswith("rank 0 raised ZeroDivisionError: division by zero")

    @pytest.mark.parametrize("text", ["site='north", "nonsense", "site=[1]"])
    def test_a_node_config_that_is_none(self, kit: Path, app_dir: Path, text: str) -> None:
        assert fails(kit, app_dir, "--node-config", text)[0] == 2

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["--nproc-per-node", "0"], "--nproc-per-node must be at least 1"),
            (["--nnodes", "2"], "--nnodes needs --rdzv-endpoint HOST:PORT"),
            (["--engine-set", "presicion=bf16"], "did you mean 'precision'"),
            (["--engine", "dpp"], "--engine-set must be one of single, ddp"),
            (["--engine", "single", "--nproc-per-node", "2"], "engine single is for one rank, not 2"),
            (["--engine-set", "hook=[1]"], "--engine-set: hook must be a number, a string, true or false"),
        ],
    )
    def test_ranks_that_cannot_be(self, kit: Path, app_dir: Path, options: list[str], text: str) -> None:
        status, message = fails(kit, app_dir, *options)
        assert status == 2
        assert text in message

    def test_only_machine_0_needs_a_kit(self, app_dir: Path) -> None:
        result = CliRunner().invoke(app, ["--app", str(app_dir)])
        assert result.exit_code == 2
        assert "'--kit'" in result.stderr
        nodes = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "nowhere.invalid:1"]
        result = CliRunner().invoke(app, ["--app", str(app_dir), *nodes])
        assert result.exit_code == 2
        assert "nowhere.invalid cannot be reached" in result.stderr

    def test_a_data_folder_that_is_not_there(self, kit: Path, app_dir: Path, tmp_path: Path) -> None:
        status, message = fails(kit, app_dir, "--data-dir", str(tmp_path / "no-data"))
        assert status == 2
        assert "no-data" in message

    def test_two_agents_with_one_kit(self, kit: Path, app_dir: Path, tmp_path: Path) -> None:
        lock = FolderLock(kit)
        status, message = fails(kit, app_dir, "--state-dir", str(tmp_path / "other"))
        lock.close()
        assert status == 2
        assert "another agent uses" in message

    def test_a_state_folder_that_cannot_be_made(self, kit: Path, app_dir: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        status, message = fails(kit, app_dir, "--state-dir", str(tmp_path / "file" / "state"))
        assert status == 4
        assert "--state-dir" in message

    async def test_a_server_of_another_authority(
        self, script: Script, kit: Path, app_dir: Path, tmp_path: Path
    ) -> None:
        other = provision(tmp_path / "other", name="testing", clients=4, now=datetime.now(UTC))
        shutil.copy(other.clients[0] / "ca.crt", kit / "ca.crt")
        async with script.serving():
            process = await start("--kit", str(kit), "--app", str(app_dir))
            _, errors = await asyncio.wait_for(process.communicate(), 100)
        assert process.returncode == 3
        assert b"is not the one of this kit" in errors

    def test_help_shows_an_example(self) -> None:
        result = CliRunner().invoke(app, ["--help"])
        assert result.exit_code == 0
        assert "Example: fedcore client --kit" in result.stdout.replace("\n", " ")
