"""Prometheus of Debian: promtool reads the alarms and their tests, and a real one scrapes a real server."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support.deployment import wait_until
from support.nginx import NGINX, nginx
from support.ports import reserved_port

from fedcore.federation import Policy, provision

FOLDER = Path(__file__).parents[3] / "deploy" / "prometheus"
pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="needs Prometheus: apt install prometheus",
)


def promtool(*words: str, folder: Path = FOLDER) -> int:
    return subprocess.run(["promtool", *words], cwd=folder, capture_output=True, check=False).returncode


def test_the_alarms_ring_when_they_should_and_only_then(tmp_path: Path) -> None:
    assert promtool("check", "config", "prometheus.yml") == 0
    assert promtool("check", "config", "--syntax-only", "prometheus-tls.yml") == 0
    assert promtool("test", "rules", "fedcore.rules.test.yml") == 0
    rules = (FOLDER / "fedcore.rules.yml").read_text()
    shutil.copy(FOLDER / "fedcore.rules.test.yml", tmp_path)
    for change in (("days_left < 14", "days_left < 12"), ("== 0\n        for: 2m", "== 2\n        for: 2m")):
        assert change[0] in rules
        (tmp_path / "fedcore.rules.yml").write_text(rules.replace(*change))
        assert promtool("test", "rules", "fedcore.rules.test.yml", folder=tmp_path) != 0


@pytest.mark.parametrize(
    "over_tls", [False, pytest.param(True, marks=pytest.mark.skipif(NGINX is None, reason="nginx is not installed"))]
)
def test_prometheus_scrapes_a_server_and_notices_its_end(tmp_path: Path, over_tls: bool) -> None:
    with reserved_port() as port, reserved_port() as metrics, reserved_port() as own, reserved_port() as front:
        fleet = provision(
            tmp_path / "fed", name="fleet", clients=2, now=datetime.now(UTC), hosts=["127.0.0.1"], port=port,
            policy=Policy.own(2),
        )  # fmt: skip
        settings = fleet.server / "server.toml"
        text = settings.read_text().replace('metrics-listen = ""', f'metrics-listen = "127.0.0.1:{metrics}"')
        settings.write_text(text)
        config = yaml.safe_load((FOLDER / f"prometheus{'-tls' * over_tls}.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        rules = (FOLDER / "fedcore.rules.yml").read_text()
        (tmp_path / "fedcore.rules.yml").write_text(rules.replace("for: 2m", "for: 2s"))  # nobody leads for a moment
        config["rule_files"] = [str(tmp_path / "fedcore.rules.yml")]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{front if over_tls else metrics}"]
        if over_tls:
            config["scrape_configs"][0]["tls_config"]["ca_file"] = str(fleet.operator / "ca.crt")
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        commands: list[list[Any]] = [
            [sys.executable, "-m", "fedcore", "server", "--federation", fleet.folder],
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
             f"--web.listen-address=127.0.0.1:{own}"],
        ]  # fmt: skip
        with contextlib.ExitStack() as context:
            log = context.enter_context((tmp_path / "log").open("w"))
            if over_tls:
                addresses = {"9465": str(front), "9464": str(metrics), "10.0.0.9": "127.0.0.1"}
                files = {"/etc/fedcore/nginx/server": str(fleet.server / "server")}
                context.enter_context(nginx(tmp_path, "fedcore-metrics.conf", **addresses, **files))
            processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
            try:
                asked = Asked(own)
                wait_until("that the server leads", lambda: asked.value('fedcore_leader{federation="pilot"}') == 1)
                assert asked.value('up{job="fedcore"}') == 1
                assert asked.value("fedcore_certificate_days_left > 300")
                wait_until("all alarms are evaluated", lambda: set(asked.health()) == {"ok"})
                wait_until("no alarm to ring", lambda: asked.firing() == set())
                processes[0].kill()
                wait_until("the alarm of a server that is gone", lambda: asked.firing() == {"FedcoreDown"})
            finally:
                for process in processes:
                    process.kill()
                    process.wait()


class Asked:
    """A Prometheus that answers queries, or does not yet."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/api/v1"

    def value(self, query: str) -> float | None:
        result = self._get("query", query=query).get("result", [])
        return float(result[0]["value"][1]) if result else None

    def health(self) -> list[str]:
        return [rule["health"] for group in self._get("rules").get("groups", []) for rule in group["rules"]]

    def firing(self) -> set[str]:
        """Names of the alarms that ring."""
        alerts = self._get("alerts").get("alerts", [])
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        try:
            answer = httpx.get(f"{self.address}/{path}", params=parameters)
        except httpx.TransportError:
            return {}
        return answer.json().get("data", {}) if answer.is_success else {}
