"""`fedcore demo --open` from its first word to Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.deployment import ENVIRONMENT

LONG = 900


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for temporary files whose sockets have room for their names."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        yield Path(name)


def test_a_federation_is_left_open_until_ctrl_c(tmp_path: Path, short: Path) -> None:
    log = (tmp_path / "log").open("w")
    environment = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
    demo = subprocess.Popen(
        [sys.executable, "-m", "fedcore", "demo", "--open", "--json"],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**environment, **ENVIRONMENT, "TMPDIR": str(short)},
    )
    try:
        assert demo.stdout is not None
        line = demo.stdout.readline()
        assert line, (tmp_path / "log").read_text()
        link = json.loads(line)
        page, _, token = link["url"].partition("#view=")
        with httpx.Client(base_url=page, verify=False, timeout=LONG) as browser:
            assert browser.get("/").headers["content-type"].startswith("text/html")
            headers = {"X-Fedcore": "1"}
            assert browser.post("/v1/session", json={"token": token}, headers=headers).status_code == 204
            session = browser.get("/v1/session").json()
            runs = browser.get("/v1/runs").json()["runs"]
        assert (session["role"], session["federation"]) == ("viewer", "demo")
        assert [run["status"] for run in runs] == ["running"]
        demo.send_signal(signal.SIGINT)
        assert demo.wait(LONG) == 0
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()
        log.close()
    said = (tmp_path / "log").read_text()
    assert f"open this page in a browser: {link['url']}" in said.replace("\n", "")
    assert list(short.glob("fedcore-demo-*")) == [], "nothing is left"
