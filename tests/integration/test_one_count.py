"""Exchanges and bytes of updates are the same numbers for the operator, for each owner and in the transcript.

A client dies once its update has left, and comes back; a run is refused by all; a member is revoked at the end.
"""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.deployment import Deployment, Ended
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.federation import OperatorKit

NAMES = [f"client-{number}" for number in (1, 2, 3, 4)]
Counts = dict[str, tuple[int, int]]
"""Site -> exchanges, bytes of its updates."""


def command(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def document(*words: str | Path) -> Any:
    return json.loads(command(*words, "--json"))


def counts(sites: dict[str, dict[str, int]]) -> Counts:
    return {name: (gave["exchanges"], gave["update_bytes"]) for name, gave in sites.items() if gave["exchanges"]}


def on_the_page(operator: Path, run: str) -> Counts:
    """What the server's page gets."""
    kit = OperatorKit.load(operator)
    url, ca = f"{kit.servers[0]}/v1/runs/{run}/marks", str(operator / "ca.crt")

    answer = httpx.get(
        url, headers={"Authorization": f"Bearer {kit.token}"}, verify=ssl.create_default_context(cafile=ca)
    )
    return counts({client["name"]: client["gave"] for client in answer.raise_for_status().json()["clients"]})


def of_owners(federation: Deployment, run: str) -> dict[str, Counts]:
    """What each place that an owner looks at says of a run."""
    places: dict[str, Counts] = {"status": {}, "audit": {}, "own copy": {}}
    for name in NAMES:
        kit = federation.kit(name)
        status = {one["run"]: one["gave"] for one in document("client", "status", "--kit", kit)["runs"]}
        copy = {one["run"]: one["contributions"] for one in document("transcript", "verify", "--kit", kit)["runs"]}
        own = {
            "status": status.get(run),
            "audit": document("client", "audit", "--kit", kit)["contributions"].get(run),
            "own copy": copy.get(run, {}).get(name),
        }
        for place, gave in own.items():
            places[place] |= counts({name: gave} if gave else {})
    return places


def everywhere(federation: Deployment, done: Ended) -> dict[str, Counts]:
    """Place -> what it says of a run."""
    operator, run = federation.federation.operator, done.summary["run"]
    records = document("transcript", "verify", "--operator", operator)["runs"]
    return {
        "end of the run": counts(done.summary["contributions"]),
        "runs show": counts(document("runs", "show", run, "--operator", operator)["contributions"]),
        "page": on_the_page(operator, run),
        "transcript": next((counts(one["contributions"]) for one in records if one["run"] == run), {}),
        **of_owners(federation, run),
    }


def test_all_places_count_the_same(tmp_path: Path) -> None:
    with Deployment.open(tmp_path, clients=len(NAMES)) as federation:
        federation.start_server()
        federation.start_clients(*NAMES[:3])
        federation.start_client("client-4", dies_after="manifest")
        federation.wait_for_log("client-4", "connected")
        hurt = federation.submit(num_server_rounds=1).finish()
        assert hurt.status == 0, hurt.stderr
        federation.process("client-4").wait()
        federation.start_clients("client-4")
        calm = federation.submit(num_server_rounds=2, settings={"min-clients": 4}).finish()
        assert calm.status == 0, calm.stderr
        refused = federation.submit(settings={"aggregation": "plain", "max-attempts": 1}).finish()
        assert refused.status != 0
        federation.stop("client-3")
        authority = ("--federation", federation.federation.folder, "--operator", federation.federation.operator)
        command("federation", "revoke", "client-3", *authority, "--yes")

        for done in (hurt, calm, refused):
            places = everywhere(federation, done)
            assert all(said == places["transcript"] for said in places.values()), places
        assert {exchanges for exchanges, _ in counts(calm.summary["contributions"]).values()} == {4}
        assert counts(hurt.summary["contributions"])["client-4"][0] == 1, "it trained, and was away for the evaluation"
        assert counts(refused.summary["contributions"]) == {}
        check_traffic(federation, calm)
        check_documents(federation, hurt, tmp_path)


def check_traffic(federation: Deployment, done: Ended) -> None:
    """Of those that were never hurt: what a client sent is what the server received, but for a request or two."""
    for name in NAMES[:3]:  # the fourth fetched the record that it missed
        (own,) = (
            own
            for own in document("client", "status", "--kit", federation.kit(name))["runs"]
            if own["run"] == done.summary["run"]
        )
        events = [event for event in done.events if name in event.get("bytes_up", {}) and event["kind"] != "traffic"]
        assert own["up"] == pytest.approx(sum(event["bytes_up"][name] for event in events), rel=0.02)
        assert own["down"] == pytest.approx(sum(event["bytes_down"][name] for event in events), rel=0.02)


def check_documents(federation: Deployment, done: Ended, folder: Path) -> None:
    """The numbers of all runs in what a data protection officer reads; no bytes are missing of the one that died."""
    status = document("client", "status", "--kit", federation.kit("client-4"))
    own = next(one for one in status["runs"] if one["run"] == done.summary["run"])
    assert own["up"] >= own["gave"]["update_bytes"] > 0
    total = sum(one["gave"]["update_bytes"] for one in status["runs"])
    for suffix in ("md", "html"):
        out = folder / f"document.{suffix}"
        command("client", "status", "--kit", federation.kit("client-4"), "--export", out)
        assert f"{total:,}" in re.findall(r"[\d,]+\d", out.read_text(encoding="utf-8"))
