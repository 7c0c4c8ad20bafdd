"""Two servers lead one run in turn, whatever becomes of the one that leads: the round in the middle goes on."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import forked
from support.deployment import PATIENCE
from support.postgres import Cluster, postgres
from support.replicas import SERVERS, Replicas

__all__ = ["postgres"]

NOT_LEADING = "urn:fedcore:problem:not-leading"
CLIENTS = ["client-1", "client-2", "client-3"]


@pytest.fixture
def replicas(postgres: Cluster, tmp_path: Path) -> Iterator[Replicas]:
    with Replicas.open(tmp_path, postgres.create(), clients=4) as made:
        yield made


def runs_from(replicas: Replicas, first: str) -> list[str]:
    """`fedcore runs list` of an operator whose kit names this server first."""
    kit = replicas.made.folder / f"operator-of-{first}"
    shutil.copytree(replicas.made.federation.operator, kit)
    urls = [
        f"https://localhost:{replicas.ports[name]}" for name in sorted(replicas.ports, key=lambda name: name != first)
    ]
    lines = (kit / "operator.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("server-url", "servers"))]
    (kit / "operator.toml").write_text("\n".join([*kept, f"servers = {json.dumps(urls)}", ""]))
    done = forked("runs", "list", "--operator", kit, "--json")
    assert done.returncode == 0, done.stderr
    return [run["run"] for run in json.loads(done.stdout)["runs"]]


def test_a_round_goes_on_when_servers_stop_and_are_killed(replicas: Replicas) -> None:
    made = replicas.made
    replicas.start("server")
    replicas.led_by("server")
    replicas.start("server-2")
    assert replicas.problem("server-2", "/v1/task") == NOT_LEADING
    published = ["--federation", made.federation.folder, "--operator", made.federation.operator]
    revoked = forked("federation", "revoke", "client-4", "--yes", *published)
    assert revoked.returncode == 0, revoked.stderr
    made.start_clients(*CLIENTS)
    run = made.submit(gated=True, settings={"min-clients": 3}, num_server_rounds=2)
    run.wait_for_training()

    # A rolling restart: the one that stops hands over, comes back, and stands by.
    leader = made.process("server")
    leader.send_signal(signal.SIGTERM)
    replicas.led_by("server-2")
    assert leader.wait(PATIENCE) == 0
    run.wait_until_resumed(1)
    assert "roster 2 is in use" in made.log("server-2"), "which was published to the other one"
    replicas.start("server")
    listed = runs_from(replicas, "server")
    assert listed == runs_from(replicas, "server-2")
    assert len(listed) == 1

    made.kill("server-2")
    replicas.led_by("server")
    run.wait_until_resumed(2)
    replicas.start("server-2")

    # One that is only stopped wakes up as one that leads no more.
    paused = made.process("server")
    paused.send_signal(signal.SIGSTOP)
    replicas.led_by("server-2")
    answer = replicas.ask_one_that_is_stopped("server", "/v1/task", lambda: paused.send_signal(signal.SIGCONT))
    assert answer is None or answer.json()["type"] == NOT_LEADING, "not what it knew before"
    assert replicas.problem("server", "/v1/task") == NOT_LEADING
    made.wait_for_log("server", "leads no more")

    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert done.trained() == [CLIENTS, CLIENTS]
    assert (done.of("exchange-failed"), done.of("dropped")) == ([], [])
    assert len(done.of("resumed")) == 3
    assert done.model.exists()
    assert [made.stop(name) for name in SERVERS] == [0, 0]
