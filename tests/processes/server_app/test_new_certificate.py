"""SIGHUP: a running server takes a new certificate, and keeps its old one where the new one is broken."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support.deployment import PATIENCE, Deployment, wait_until

from fedcore.federation import OperatorKit
from fedcore.federation.authority import Authority


def test_a_running_server_takes_a_new_certificate(tmp_path: Path) -> None:
    with Deployment.open(tmp_path, clients=2) as made:
        made.start_server()
        federation = made.federation.folder
        path = federation / "server" / "server.crt"
        first = shown(made)
        path.write_text("broken")
        made.process("server").send_signal(1)
        made.wait_for_log("server", "the new certificate is not taken")
        assert shown(made) == first
        path.write_text(first)
        Authority.load(federation).renew(path, [], now=datetime.now(UTC) - timedelta(days=350))
        said = len(made.log("server"))
        made.process("server").send_signal(1)
        made.wait_for_log("server", "the server's certificate expires in", after=said)
        wait_until("the new one", lambda: shown(made) == path.read_text() != first, PATIENCE)
        assert made.stop("server") == 0


def shown(made: Deployment) -> str:
    url = OperatorKit.load(made.federation.operator).servers[0]
    host, port = url.removeprefix("https://").split(":")
    return ssl.get_server_certificate((host, int(port)))
