"""`fedcore compare` in real processes: from end to end, and refused."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter
from support.commands import forked
from support.deployment import fedcore
from support.later import Later
from support.tiny import TINY

from fedcore.comparison.results import RunResult, SumCheck
from fedcore.monitoring.progress import PLAIN_WARNING
from fedcore.state import ModelState

jsonschema = Later("jsonschema")

SURVIVAL = Path(__file__).parents[1] / "apps" / "survival"


def test_an_app_that_cannot_be_imported_is_not_compared(tmp_path: Path) -> None:
    app = tmp_path / "app"
    (app / "tiny_app").mkdir(parents=True)
    for name in ("pyproject.toml", "tiny_app/__init__.py", "tiny_app/problem.py", "tiny_app/server_app.py"):
        (app / name).write_bytes((TINY / name).read_bytes())
    (app / "tiny_app" / "client_app.py").write_text("import a_module_that_is_not_installed\n")
    done = forked("compare", app, "--clients", "2", "--modes", "federated", "--out", tmp_path / "out", "--json")
    assert done.returncode == 2
    assert "ModuleNotFoundError: No module named 'a_module_that_is_not_installed'" in done.stderr
    assert 'client_app.py", line 1' in done.stderr, "where to look"
    assert not (tmp_path / "out").exists()


def test_a_comparison_from_end_to_end(tmp_path: Path) -> None:
    digits = Path(__file__).parents[2] / "examples" / "digits"
    out = tmp_path / "out"
    modes = ("federated", "federated-plain", "centralized")
    done = fedcore(
        *("compare", digits, "--clients", "2", "--modes", ",".join(modes), "--out", out),
        *("--run-config", "num-server-rounds=2", "--network", "wan", "--seeds", "1", "--json"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    assert json.loads(done.stdout) == report
    assert report["schema"] == "fedcore/compare/7"
    jsonschema.validate(report, json.loads((files("fedcore.comparison.report") / "schema.json").read_text()))
    assert {check["name"]: check["status"] for check in report["fairness"] if check["status"] != "holds"} == {}
    assert [mode["label"] for mode in report["modes"]] == list(modes)
    assert sum(site["training"] for site in report["split"]) == sum(
        sum(site["labels"].values()) for site in report["split"]
    )
    secure, plain, central = TypeAdapter(tuple[RunResult, ...]).validate_python(report["runs"])
    for run in (secure, plain, central):
        assert run.status == "finished"
        assert run.curve[-1].round == 2
        assert 0.2 < float(run.metrics["accuracy"]) <= 1
        assert run.simulated_seconds
        assert len(run.sites) == 2
    assert (secure.aggregation, plain.aggregation) == ("secure", "plain")
    assert secure.samples == plain.samples == central.samples > 0
    assert secure.initial_sha256 == plain.initial_sha256 == central.initial_sha256 != ""
    assert abs(float(secure.metrics["accuracy"]) - float(plain.metrics["accuracy"])) < 0.02
    first, last = TypeAdapter(tuple[SumCheck, ...]).validate_python(report["sum_checks"])
    assert (first.round, first.plain, first.extra_rounds, first.status) == (1, "federated-plain", 0, "holds")
    assert (last.round, last.plain, last.extra_rounds, last.status) == (2, "", 1, "holds")
    assert first.last_difference is not None
    assert all((run.processor_seconds or 0) > 0.1 for run in (secure, plain, central))
    assert sum(central.bytes_up.values()) == 0 < sum(secure.bytes_up.values())
    assert all(mode in (out / "report.md").read_text() for mode in modes)
    assert "<html" in (out / "report.html").read_text()
    assert PLAIN_WARNING in done.stderr
    for model in out.glob("runs/*/model.safetensors"):
        assert ModelState.open(model)
    merged = forked("compare", "--from", out / "report.json", "--out", tmp_path / "merged", "--json")
    assert merged.returncode == 0, merged.stderr
    assert json.loads(merged.stdout)["runs"] == report["runs"]


def test_an_own_loss_is_compared_by_the_metric_that_is_named(tmp_path: Path) -> None:
    """Cox regression with a loop of its own, which goes over its examples three times and reports a weight of 4."""
    command = ("compare", SURVIVAL, "--clients", "2", "--seeds", "1", "--out", tmp_path / "out")
    listed = forked(*command, "--list-metrics")
    sets = ["c_index/all_pairs:max", "c_index/mean_of_sites:max"]
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names == ["c_index:max", "mean_risk:min", "loss:min", *sets]
    unknown = forked(*command, "--metric", "c_indx")
    assert (unknown.returncode, "c_index:max, mean_risk:min" in unknown.stderr) == (2, True)
    divided = forked(*command, "--modes", "allreduce,local")
    assert (divided.returncode, re.search("--modes allreduce.*cox", divided.stderr) is not None) == (2, True)
    assert not (tmp_path / "out").exists()
    modes = ("--modes", "federated,centralized,local", "--metric", "c_index:max", "--run-config", "passes=3")
    done = forked(*command, *modes, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, json.loads((files("fedcore.comparison.report") / "schema.json").read_text()))
    assert (report["judged_by"], report["own_evaluation"]) == ({"name": "c_index", "better": "max"}, False)
    secure, central, alone = TypeAdapter(tuple[RunResult, ...]).validate_python(report["runs"])
    assert secure.samples == 3 * (central.samples or 0) == 3 * (alone.samples or 0) > 0
    checks = {check["name"]: check["status"] for check in report["fairness"]}
    assert (checks["Examples trained on"], checks["Test examples"]) == ("differs", "holds")
    for run in (secure, central, alone):
        assert all(set(point.metrics) >= {"c_index", "mean_risk", "loss"} for point in run.curve), "every round"
    assert [point.metrics for point in secure.curve[:1]] == [point.metrics for point in central.curve[:1]]
    assert report["headline"][0].startswith("Together c_index 0.")
    assert re.search(r", each site alone 0\.\d+ on everyone's test data, pooled 0\.\d+;", report["headline"][0])
    assert report["headline"][0] in (tmp_path / "out" / "report.md").read_text()
    assert "train_loss" not in done.stderr.split("centralized")[0], "the app reports none"


def test_a_private_run_from_end_to_end(tmp_path: Path) -> None:
    """Real processes: epsilon after every exchange, and a budget that ends the run with a model."""
    app = Path(__file__).parents[1] / "apps" / "steady"
    out = tmp_path / "out"
    done = forked(
        *("compare", app, "--clients", "2", "--modes", "federated-dp", "--out", out, "--json"),
        *("--run-config", "num-server-rounds=3", "--set", "dp-epsilon=6", "--set", "dp-rounds=2"),
    )
    assert done.returncode == 0, done.stderr
    (values,) = json.loads(done.stdout)["runs"]
    result = TypeAdapter(RunResult).validate_python(values)
    assert (result.status, result.curve[-1].round, result.samples) == ("finished", 2, None)
    assert result.reason.startswith("privacy-budget")
    assert result.privacy is not None
    assert result.epsilon_spent is not None
    assert 5.9 < result.epsilon_spent <= result.privacy.epsilon_budget == 6
    ledgers = list((out / "federation").glob("**/clients/*/**/ledger.jsonl"))
    assert len(ledgers) == 2
    for ledger in ledgers:
        events = [json.loads(line)["event"] for line in ledger.read_text().splitlines()]
        assert events.count("spent") == 2
    (model,) = out.glob("runs/*/model.safetensors")
    assert np.asarray(ModelState.open(model)["weight"]).std() > 0
