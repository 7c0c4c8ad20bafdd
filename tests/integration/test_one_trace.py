"""A run from the command to the ranks is one trace, in the spans of every process, in headers and in logs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.collector import Collector
from support.deployment import ENVIRONMENT, PATIENCE, QUICK, Deployment, wait_until

from fedcore.comparison.local_federation import run_command

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry, of the extra tracing")
CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
NAMES = ["client-1", "client-2", "client-3"]
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def add_traces(file: Path, address: str) -> None:
    text = re.sub(r'^traces = ""\n', "", file.read_text(), flags=re.M)
    file.write_text(f'traces = "{address}/v1/traces"\n{text}')


def run(federation: Deployment, out: Path, **variables: str) -> list[dict[str, Any]]:
    """What `fedcore run --json` prints."""
    operator = federation.federation.operator
    command = run_command(federation.app, operator, out=out, run_config={"num-server-rounds": 1}, settings=QUICK)
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT, **variables}, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_all_processes_of_a_run_share_one_trace(tmp_path: Path) -> None:
    with Collector.open() as collector, Deployment.open(tmp_path, clients=3) as federation:
        add_traces(federation.federation.folder / "server" / "server.toml", collector.url)
        for name in NAMES:
            add_traces(federation.kit(name) / "client.toml", collector.url)
        federation.start_server("--log-json")
        federation.start_client("client-1", "--json", "--nproc-per-node", "2")
        for name in NAMES[1:]:
            federation.start_client(name, "--json")
        for name in NAMES:
            federation.wait_for_log(name, "connected")
        caller = {"TRACEPARENT": f"00-{CALLER}-00f067aa0ba902b7-01", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        printed = run(federation, tmp_path / "model.safetensors", **caller)

        expected = {("fedcore-run", "submit"), ("fedcore-run", "follow"), ("fedcore-server", "run")}
        ranks = {(name, "rank 0") for name in NAMES} | {("client-1", "rank 1")}

        def all_there() -> bool:
            spans = collector.spans()
            of_services = {(span.service, span.name) for span in spans}
            parents = {span.parent for span in spans} - {""}
            return (
                expected <= of_services
                and ranks <= {(span.instance, span.name) for span in spans}
                and parents <= {span.id for span in spans}
            )

        wait_until("spans of all", all_there)
        logs = {name: federation.log(name) for name in ("server", *NAMES)}
    spans = collector.spans()
    [trace] = {span.trace for span in spans}
    assert printed[0]["trace_id"] == trace
    assert {span.parent == "" for span in spans if span.name != "run"} == {False}
    assert {(span.service, link) for span in spans for link in span.links} == {("fedcore-run", CALLER)}
    assert {span.attributes for span in spans} == {
        frozenset({"fedcore.run"}), frozenset({"fedcore.run", "fedcore.exchange"})
    }  # fmt: skip
    for name, log in logs.items():
        lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        assert all(MOMENT.fullmatch(line["time"]) for line in lines), name
        about = [line for line in lines if "run" in line]
        assert about, name
        assert {line["trace_id"] for line in about} == {trace}
    times = [line["time"] for line in printed if "time" in line]
    assert times
    assert all(map(MOMENT.fullmatch, times))
