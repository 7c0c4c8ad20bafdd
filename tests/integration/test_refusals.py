"""What clients, server and operator refuse while a federation runs: each says why where it can be mended."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import forked
from support.deployment import Deployment
from support.flower_rows import APPS, PLAIN_TOLERANCE, SECURE_TOLERANCE, difference, last_result
from support.tiny import TINY

from fedcore.comparison.local_federation import LocalFederation
from fedcore.federation import Policy
from fedcore.federation.kits.policy_text import policy_text

OTHERS = ["client-1", "client-2", "client-4"]
SECRET = "patient 17 is in this message"


@pytest.mark.parametrize(
    ("fault", "log", "reason"),
    [
        ("hang", "rank 0 gave no answer within", "worker-died, rank-hung"),
        ("raise", f"rank 0 raised ValueError: {SECRET}", "app-failed, rank-exception"),
        ("too-many-examples", "1073741824", "update-refused"),
        ("float64", "'weight' is F64", "wrong-records"),
        ("no-examples", "'num-examples'", "wrong-records"),
        ("two-metrics", "exactly one MetricRecord", "wrong-records"),
    ],
)
def test_an_app_that_errs_at_one_client(federation: Deployment, fault: str, log: str, reason: str) -> None:
    said = len(federation.log("client-3"))
    # Longer than any honest client of the tiny app takes, even for a group that starts anew.
    settings = {"train-seconds": 15.0} if fault == "hang" else {}
    done = federation.submit(fault=fault, faulty_partition=2, settings=settings).finish()
    assert done.status == 0, done.stderr
    assert log in federation.log("client-3")[said:], "the owner learns what happened"
    dropped = [data for data in done.of("dropped") if data["client"] == "client-3"]
    assert [data["reason"] for data in dropped[:1]] == [f"withdrew: {reason}"], "the operator gets a code and no more"
    train, _ = done.of("exchange-done")
    assert train["survivors"] == OTHERS
    assert SECRET not in str(done.events) + done.stderr + federation.log("server")


def test_nobody_is_told_whose_app_erred(federation: Deployment) -> None:
    """As stock kits have it: the operator reads how many contributed nothing, and the owner why."""
    policy = federation.kit("client-3") / "policy.toml"
    before = policy.read_text()
    federation.stop("client-3")
    said = len(federation.log("client-3"))
    try:
        policy.write_text(before.replace("report-failures = true", "report-failures = false"))
        federation.start_clients("client-3")
        done = federation.submit(fault="raise", faulty_partition=2, settings={"min-clients": 4}).finish()
    finally:
        policy.write_text(before)
        federation.stop("client-3")
    assert done.status == 0, done.stderr
    train, _ = done.of("exchange-done")
    assert (train["survivors"], train["failures"]) == (sorted([*OTHERS, "client-3"]), 1)
    assert done.of("dropped") == []
    told = federation.log("client-3")[said:]
    assert f"rank 0 raised ValueError: {SECRET}" in told
    assert SECRET not in str(done.events) + done.stderr + federation.log("server")


def test_the_operator_learns_why_no_round_was_possible(federation: Deployment) -> None:
    federation.stop("client-1")
    settings = {"max-attempts": 2, "min-clients": 3, "quorum": 3}
    done = federation.submit(fault="float64", faulty_partition=2, settings=settings).finish()
    assert done.status == 5
    assert [data["retry"] for data in done.of("exchange-failed")] == [True, False]
    assert re.search("client-3: .*wrong-records", done.stderr)
    assert done.summary["status"] == "failed"
    assert "wrong-records" in done.summary["reason"]


def test_a_client_with_another_app_is_not_asked(federation: Deployment) -> None:
    app = Path(shutil.copytree(TINY, federation.folder / "another-app"))
    code = app / "tiny_app" / "client_app.py"
    code.write_text(code.read_text() + "# another version\n")
    federation.stop("client-3")
    federation.app, original = app, federation.app
    try:
        federation.start_clients("client-3")
        federation.app = original
        done = federation.submit(settings={"min-clients": 3}).finish()
    finally:
        federation.app = original
        federation.stop("client-3")
    assert done.status == 0, done.stderr
    (dropped,) = done.of("dropped")
    assert dropped["client"] == "client-3"
    assert "another app is installed there" in dropped["reason"]
    assert done.of("exchange-done")[0]["survivors"] == OTHERS


def test_a_message_may_change_what_a_run_may_not(tmp_path: Path) -> None:
    """The strategy of the agreed app halves a key of the run config, of which no owner has a rule."""
    app = Path(shutil.copytree(APPS, tmp_path / "app"))
    project = (app / "pyproject.toml").read_text().replace('"FedAvg"', '"HalvingAvg"')
    (app / "pyproject.toml").write_text(project.replace('"quickstart:', '"schedules:'))
    kept = json.loads((APPS / "results.json").read_text())["flower"]
    # Stock but for what the tests' federations set.
    stock = replace(Policy.default(4), allow_plain=True, allow_config={"fedcore.train-seconds": True})
    with Deployment.open(tmp_path, clients=4) as federation:
        federation.app = app
        for name in federation.federation.client_names():
            (federation.kit(name) / "policy.toml").write_text(policy_text(stock), encoding="utf-8")
        federation.start()
        for mode, tolerance in (("secure", SECURE_TOLERANCE), ("plain", PLAIN_TOLERANCE)):
            done = federation.submit(settings={"min-clients": 4, "aggregation": mode}).finish()
            assert done.status == 0, done.stderr
            found = last_result("\n".join(event["line"] for event in done.of("log")))
            wanted = kept["schedules.server schedules.client HalvingAvg"]["found"]
            assert difference(found, wanted) < tolerance


def test_one_model_gets_one_question(tmp_path: Path) -> None:
    """The strategy asks with one bound, and then with another one about the same model: clip-bound, say."""
    app = Path(shutil.copytree(TINY, tmp_path / "app"))
    server = app / "tiny_app" / "server_app.py"
    once = (
        "    chosen.start(grid=grid, initial_arrays=arrays, num_rounds=1, train_config=ConfigRecord({'bound': %s}))\n"
    )
    head, _, _ = server.read_text().partition("    chosen.start(")
    server.write_text(head + once % 1.0 + once % 2.0)
    # Stock but for what the tests' federations set.
    stock = replace(Policy.default(4), allow_config={"fedcore.train-seconds": True})
    with Deployment.open(tmp_path, clients=4) as federation:
        federation.app = app
        for name in federation.federation.client_names():
            (federation.kit(name) / "policy.toml").write_text(policy_text(stock), encoding="utf-8")
        federation.start()
        done = federation.submit(settings={"min-clients": 4}).finish()
        assert done.status == 5
        assert "other-question" in done.stderr
        trained = [event for event in done.of("exchange-done") if event["message_type"] == "train"]
        assert len(trained) == 1


def test_plain_aggregation_needs_the_owners_consent(federation: Deployment) -> None:
    said = len(federation.log("client-1"))
    done = federation.submit(settings={"aggregation": "plain"}).finish()
    assert done.status == 5
    assert ": plain-not-allowed: " in done.stderr
    assert ": plain-not-allowed: " in federation.log("client-1")[said:]


def test_a_single_update_strategy_is_refused_before_the_first_round(federation: Deployment) -> None:
    done = federation.submit(strategy="Krum").finish()
    assert done.status == 5
    assert "Krum " in done.stderr
    assert 'aggregation = "plain"' in done.stderr
    assert done.of("exchange") == []


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
def test_a_strategy_that_waits_for_more_than_there_are(federation: Deployment, aggregation: str) -> None:
    done = federation.submit(min_nodes=5, settings={"aggregation": aggregation}).finish()
    assert done.status == 5
    assert re.search(r"5 .*\(min_available_nodes=5\).* 4 ", done.stderr)
    assert done.of("exchange") == []


def strangers(federation: Deployment) -> LocalFederation:
    """Another federation whose kits point at this one's server."""
    other = LocalFederation.create(Path(tempfile.mkdtemp(dir=federation.folder)) / "other", clients=4)
    for file in ("clients/client-1/client.toml", "operator/operator.toml"):
        path = other.folder / file
        path.write_text(path.read_text().replace(f":{other.port}", f":{federation.federation.port}"))
    return other


def trust(federation: Deployment, kit: Path) -> None:
    """Give the stranger the right certificate authority."""
    shutil.copy2(federation.federation.operator / "ca.crt", kit / "ca.crt")


def test_an_identity_that_is_not_on_the_roster_waits_for_one_that_has_it(federation: Deployment) -> None:
    stranger = strangers(federation)
    kit = stranger.folder / "clients" / "client-1"
    trust(federation, kit)
    federation.start_node("stranger", "--kit", kit)
    federation.wait_for_log("stranger", "the server does not accept this client's signature")
    federation.wait_for_log("stranger", "fedcore federation publish")
    assert federation.stop("stranger") == 0
    assert "Traceback" not in federation.log("stranger")


def test_an_operators_token_that_is_wrong(federation: Deployment) -> None:
    stranger = strangers(federation)
    trust(federation, stranger.operator)
    done = forked("run", TINY, "--operator", stranger.operator, "--out", stranger.folder / "m.safetensors")
    assert done.returncode == 3
    assert "token" in done.stderr
    token = (stranger.operator / "token").read_text().strip()
    assert token not in done.stderr + federation.log("server")


@pytest.mark.parametrize("who", ["client", "operator"])
def test_a_server_with_another_certificate(federation: Deployment, who: str) -> None:
    stranger = strangers(federation)
    kit = stranger.folder / "clients" / "client-1"
    command = (
        ("client", "--kit", kit, "--app", TINY) if who == "client" else ("run", TINY, "--operator", stranger.operator)
    )
    done = forked(*command, folder=stranger.folder)
    assert done.returncode == 3
    assert re.search(rf"https://localhost:{_port(kit)}\b.*server-url.*ca\.crt", done.stderr)


def _port(kit: Path) -> str:
    (line,) = (line for line in (kit / "client.toml").read_text().splitlines() if line.startswith("server-url"))
    return line.rsplit(":", 1)[1].strip('"/ ')


def test_two_servers_or_agents_over_one_folder(federation: Deployment) -> None:
    second = forked("server", "--federation", federation.federation.folder, "--port", "0")
    assert second.returncode == 2
    assert "another server uses the data folder" in second.stderr
    again = forked("client", "--kit", federation.kit("client-2"), "--app", TINY)
    assert again.returncode != 0
    assert "another" in again.stderr
    assert "Traceback" not in second.stderr + again.stderr
