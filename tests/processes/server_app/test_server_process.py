"""The server as a process: TLS, signals, the ServerApp beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from support.ports import reserved_port
from support.serverside import events_of, site, until
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.errors import WorkerDied
from fedcore.federation import FederationFolder, OperatorKit, Policy, provision
from server_app.runs.app.messages import Start
from server_app.runs.app.process import AppProcess

WAIT_SECONDS = 600.0
"""For what should come at once, on a machine that is busy."""

# --- the ServerApp's process --------------------------------------------------------------------


async def test_the_whole_run_of_an_unmodified_flower_app(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path, start_app=AppProcess.start) as made:
        run = (await made.submit({"min-clients": 4}, {"min-nodes": 4})).run
        for _ in range(2):  # train, then evaluate
            await asyncio.gather(*(member.secure() for member in await made.enter_all()))
        ended = await made.follow(run)
    assert ended.status == "finished", ended.reason
    assert ended.model is not None
    assert [item["message_type"] for item in events_of(ended, "exchange-done")] == ["train", "evaluate"]
    assert not any("Starting FedAvg" in item["line"] for item in events_of(ended, "log")), "our own events say it"
    assert not any("\x1b" in item["line"] for item in events_of(ended, "log"))


async def test_a_strategy_that_cannot_work_fails_the_run_with_its_reason(
    federation: FederationFolder, tmp_path: Path
) -> None:
    async with site(federation, tmp_path, start_app=AppProcess.start) as made:
        run = (await made.submit({}, {"strategy": "FedMedian"})).run
        ended = await made.follow(run)
    assert ended.status == "failed"
    assert "FedMedian cannot run with secure aggregation" in ended.reason
    assert not events_of(ended, "exchange")


async def test_a_cancelled_run_leaves_no_process(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path, start_app=AppProcess.start) as made:
        run = (await made.submit()).run
        await until(lambda: made.application.queue.exchange is not None)
        ended = await made.operator("POST", f"/v1/runs/{run}/cancel")
        assert ended.json()["status"] == "cancelled"
        needle = str(made.services.settings.work_dir)
        assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and needle in cwd_of(pid)]


def cwd_of(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


async def test_a_killed_app_is_noticed_and_its_children_end(tmp_path: Path) -> None:
    lines: list[str] = []
    process = await AppProcess.start(tmp_path, lines.append)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        await process.receive()
    await process.stop()


async def test_an_app_ends_with_its_server(tmp_path: Path) -> None:
    """The server's end of the socket closes, as it does when the server is killed."""
    process = await AppProcess.start(tmp_path, lambda _: None)
    process.hang_up()
    await asyncio.wait_for(process.ended(), WAIT_SECONDS)
    await process.stop()


async def test_an_app_that_cannot_start_says_why(tmp_path: Path) -> None:
    lines: list[str] = []
    process = await AppProcess.start(tmp_path, lines.append)
    await process.send(Start(app=str(tmp_path), folder=str(tmp_path), run="r", run_config={}, aggregation="secure"))
    message = await process.receive()
    assert message.op == "broken"
    assert "not a Flower app" in message.reason
    await process.stop()


# --- the command --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationFolder]:
    with reserved_port() as port:
        yield provision(
            tmp_path_factory.mktemp("fleet") / "fed",
            name="fleet",
            clients=2,
            now=datetime.now(UTC),
            hosts=["127.0.0.1"],
            port=port,
            policy=Policy.own(2),
        )


def test_the_command_serves_over_tls_and_stops_at_a_signal(fleet: FederationFolder, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    arguments = ["--federation", str(fleet.folder), "--ready-file", str(ready), "--log-json"]
    server = subprocess.Popen(
        [sys.executable, "-m", "fedcore", "server", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        while not ready.exists():
            assert server.poll() is None
            time.sleep(0.02)
        kit = OperatorKit.load(fleet.operator)
        context = ssl.create_default_context(cafile=str(kit.ca_file))
        bearer = {"Authorization": f"Bearer {kit.token}"}
        with httpx.Client(base_url=kit.servers[0], verify=context, headers=bearer, timeout=WAIT_SECONDS) as http:
            assert http.get("/v1/clients").json()["federation"] == "fleet"
        second = CliRunner().invoke(app, ["server", "--federation", str(fleet.folder)])
        assert second.exit_code == 2
        assert "another server uses the data folder" in second.stderr
        other = ["server", "--federation", str(fleet.folder), "--data-dir", str(tmp_path / "other")]
        third = CliRunner().invoke(app, other)
        assert third.exit_code == 4
        assert "choose one with --port" in third.stderr
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=WAIT_SECONDS)
        assert server.returncode == 0, errors
        assert '"message": "stopped"' in errors
        assert kit.token not in errors
    finally:
        server.kill()
        server.communicate()
