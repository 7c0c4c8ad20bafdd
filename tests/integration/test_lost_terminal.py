"""A run whose operator is gone: it goes on, and whoever comes back follows it to its end."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from support.commands import forked
from support.deployment import PATIENCE, Deployment, wait_until


def test_a_lost_terminal_loses_no_run(tmp_path: Path) -> None:
    with Deployment.open(tmp_path, clients=3) as federation:
        federation.start()
        submitted = federation.submit(gated=True, settings={"min-clients": 3}, num_server_rounds=1)
        submitted.wait_for_training()
        submitted.process.send_signal(signal.SIGHUP)
        assert submitted.process.wait(PATIENCE) == -signal.SIGHUP
        operator = ("--operator", federation.federation.operator)
        shown = {}

        def all_train() -> bool:
            shown.update(json.loads(forked("runs", "show", "last", "--json", *operator).stdout))
            return {client["state"] for client in shown["now"]["clients"]} == {"training"}

        wait_until("all clients to be shown at work", all_train)  # and they stay there until the gate opens
        submitted.go_on()
        out = tmp_path / "found.safetensors"
        done = forked("runs", "attach", shown["run"][:8], "--json", "--out", out, *operator)
    assert done.returncode == 0, done.stderr
    first, *events, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["run"] == shown["run"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), "from its first event on"
    assert (summary["status"], summary["rounds"]) == ("finished", 1)
    assert out.exists()
