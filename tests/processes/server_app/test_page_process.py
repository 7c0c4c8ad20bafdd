"""The page's side of a server that is a process: cookies over TLS, streams, and their end."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from support.ports import reserved_port

from fedcore.federation import OperatorKit, Policy, provision

WAIT_SECONDS = 600.0
"""For what should come at once, on a machine that is busy."""


def events(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Events as they come; nothing more at the end of the stream."""
    kind = ""
    for line in answer.iter_lines():
        key, _, value = line.partition(": ")
        if key == "event":
            kind = value
        elif key == "data":
            yield kind, json.loads(value)


def test_people_sign_in_and_follow_until_the_server_stops(tmp_path: Path) -> None:
    with reserved_port() as port:
        fleet = provision(
            tmp_path / "fed", name="fleet", clients=2, now=datetime.now(UTC), hosts=["127.0.0.1"], port=port,
            policy=Policy.own(2),
        )  # fmt: skip
    ready, kit = tmp_path / "ready", OperatorKit.load(fleet.operator)
    server = subprocess.Popen(
        [sys.executable, "-m", "fedcore", "server", "--federation", str(fleet.folder), "--ready-file", str(ready)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    reach: dict[str, Any] = {
        "base_url": kit.servers[0], "verify": ssl.create_default_context(cafile=str(kit.ca_file)),
        "timeout": WAIT_SECONDS, "headers": {"X-Fedcore": "1"},
    }  # fmt: skip
    try:
        while not ready.exists():
            assert server.poll() is None
            time.sleep(0.02)
        with httpx.Client(**reach) as operator, httpx.Client(**reach) as viewer:
            assert "fedcore" in operator.get("/").text
            assert operator.post("/v1/session", json={"token": kit.token}).status_code == 204
            assert operator.get("/v1/session").json()["role"] == "operator"
            link = operator.post("/v1/links", json={"label": "the board", "days": 1}).json()
            assert link["url"].startswith(f"{kit.servers[0]}/#view=")
            assert viewer.post("/v1/session", json={"token": link["token"]}).status_code == 204
            assert viewer.post("/v1/links", json={"label": "more", "days": 1}).status_code == 403
            with viewer.stream("GET", "/v1/live") as looked_on, operator.stream("GET", "/v1/live") as followed:
                theirs, ours = events(looked_on), events(followed)
                for stream in (theirs, ours):
                    told = dict([next(stream), next(stream)])
                    assert told["runs"] == {"runs": [], "more": False}
                    assert [client["name"] for client in told["clients"]["clients"]] == ["client-1", "client-2"]
                assert operator.delete(f"/v1/links/{link['id']}").status_code == 204
                assert list(theirs) == [], "the stream ends with the link"
                server.send_signal(signal.SIGTERM)
                assert list(ours) == [], "and with the server"
        _, log = server.communicate(timeout=WAIT_SECONDS)
        assert server.returncode == 0, log
        assert not any(secret in log for secret in (kit.token, link["token"]))
    finally:
        server.kill()
        server.communicate()
