"""Groups in a real federation: one server, six clients, two groups of three, drawn anew in every round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from support.deployment import Deployment, Ended, wait_until
from typer.testing import CliRunner

from fedcore.cli.main import app

POISONED = Path(__file__).parents[1] / "apps" / "poisoned"
CLIENTS = [f"client-{number}" for number in range(1, 7)]


def reboot_in_a_round_of(federation: Deployment, settings: dict[str, Any]) -> Ended:
    """A run in whose first groups the server and a client of theirs are killed, and come back one after the other."""
    run = federation.submit(settings=settings, num_server_rounds=2)
    run.wait_for("group")
    federation.kill("server", "client-3")
    wait_until("the ServerApp to end with its server", lambda: not federation.server_apps())
    federation.start_server()
    federation.start_clients("client-3")
    return run.finish()


def reboot_of_all(federation: Deployment, settings: dict[str, Any]) -> Ended:
    """A run in whose first groups all clients are killed, and come back at once."""
    run = federation.submit(settings=settings, num_server_rounds=1)
    run.wait_for("group")
    federation.kill(*CLIENTS)
    for name in CLIENTS:
        federation.start_client(name)
    return run.finish()


def test_six_clients_in_two_groups(tmp_path: Path) -> None:
    with Deployment.open(tmp_path, clients=len(CLIENTS)) as federation:
        federation.app = POISONED
        federation.start()
        settings = {"min-clients": len(CLIENTS), "groups": 2, "min-groups": 2, "max-corrupt": 0.0}
        done = federation.submit(settings=settings, num_server_rounds=3).finish()
        checked = CliRunner().invoke(
            app, ["transcript", "verify", "--operator", str(federation.federation.operator), "--json"]
        )
        kept = CliRunner().invoke(app, ["transcript", "verify", "--kit", str(federation.kit("client-2")), "--json"])
        log = federation.log("client-2")
        rebooted = reboot_in_a_round_of(federation, settings)
        all_rebooted = reboot_of_all(federation, settings)
    assert all_rebooted.status == 0, all_rebooted.stderr
    assert [event["survivors"] for event in all_rebooted.of("exchange-done")] == [CLIENTS]
    assert [event["attempt"] for event in all_rebooted.of("group") if event["attempt"] > 2] == []
    assert rebooted.status == 0, rebooted.stderr
    assert [(event["groups"], event["survivors"]) for event in rebooted.of("exchange-done")] == [(2, CLIENTS)] * 2
    assert [event["attempt"] for event in rebooted.of("group") if event["attempt"] > 2] == []
    assert done.status == 0, done.stderr
    trained = done.of("exchange-done")
    assert [(event["groups"], event["survivors"]) for event in trained] == [(2, CLIENTS)] * 3
    groups = [tuple(event["cohort"]) for event in done.of("group")]
    assert len(groups) == 6
    assert {len(group) for group in groups} == {3}
    assert "sent a ticket for the draw of groups among 6 clients" in log
    told, own = json.loads(checked.output), json.loads(kept.output)
    assert (checked.exit_code, told["holds"], len(told["exchanges"])) == (0, True, 6)
    assert (kept.exit_code, own["holds"]) == (0, True), "a client's own copy holds, up to its last round"
    distance = np.linalg.norm(done.arrays()["weight"] - np.linspace(-1, 1, 8))
    assert distance < 0.5
