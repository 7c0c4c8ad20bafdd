"""Equal steps, and values that validation data choose, in real processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.commands import forked
from torch import nn

from fedcore.comparison.workers.problem import Problem
from fedcore.flower.app import FlowerApp
from fedcore.state import ModelState

BLOBS = Path(__file__).parents[2] / "apps" / "blobs"


def averaged(app: FlowerApp, initial: ModelState, rounds: int) -> dict[str, torch.Tensor]:
    """FedAvg with one step on all examples of each site in each round, by torch alone."""
    problem = Problem.load(app, config=app.run_config, sites=2)
    parts = [problem.training(site) for site in range(2)]
    model = nn.Sequential(nn.Linear(6, 8), nn.Identity(), nn.ReLU(), nn.Linear(8, 2))
    weights = {name: torch.tensor(initial[name]) for name in initial}
    for _ in range(rounds):
        sites = []
        for part in parts:
            model.load_state_dict(weights)
            model.zero_grad()
            nn.functional.cross_entropy(model(torch.tensor(part.x)), torch.tensor(part.y)).backward()
            sites.append({name: one.detach() - 0.1 * one.grad for name, one in model.named_parameters()})
        total = sum(len(part) for part in parts)
        weights = {
            name: sum(len(part) / total * site[name] for part, site in zip(parts, sites, strict=True))
            for name in weights
        }
    return weights


def test_as_many_steps_as_pooled_data_make(tmp_path: Path) -> None:
    """Twelve batches of 8 in each of two rounds of pooled data are 24 rounds of one step for each site."""
    done = forked(
        *("compare", BLOBS, "--clients", "2", "--modes", "federated[batch-size=0],centralized", "--seeds", "1"),
        *("--budget", "steps", "--out", tmp_path / "out", "--json"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    together, pooled = report["runs"]
    assert (together["curve"][-1]["steps"], pooled["curve"][-1]["steps"]) == (24, 24)
    assert [point["steps"] for point in together["curve"]] == list(range(25))
    assert {check["name"]: check["status"] for check in report["fairness"]}["Steps"] == "holds"
    folder = next((tmp_path / "out" / "runs").glob("*-federated-*"))
    trained = ModelState.open(folder / "model.safetensors")
    expected = averaged(FlowerApp.load(BLOBS), ModelState.open(folder / "initial.safetensors"), rounds=24)
    for name, values in expected.items():
        assert torch.tensor(trained[name]).numpy() == pytest.approx(values.numpy(), abs=2e-3), name


def test_validation_data_choose_and_test_data_do_not(tmp_path: Path) -> None:
    """The labels of the test parts are the wrong ones, so that by them the model that learns nothing is the best."""
    app = tmp_path / "blobs"
    shutil.copytree(BLOBS, app)
    code = app / "blobs_app" / "client_app.py"
    code.write_text(code.read_text().replace("Split(x=x[:20], y=labels[:20])", "Split(x=x[:20], y=1 - labels[:20])"))
    done = forked(
        *("compare", app, "--clients", "2", "--modes", "federated,centralized", "--seeds", "1"),
        *("--tune", "lr=0.000001,0.1", "--run-config", "num-server-rounds=4", "--out", tmp_path / "out", "--json"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for run in report["runs"]:
        assert run["status"] == "finished"
        assert run["tuned"] == {"lr": 0.1}
        assert [trial["point"]["lr"] for trial in run["trials"]] == [1e-6, 0.1]
        assert run["trials"][0]["value"] < 0.8 < run["trials"][1]["value"], "on validation data it learns"
        assert run["curve"][0]["metrics"]["accuracy"] > run["curve"][-1]["metrics"]["accuracy"], "on test data it fails"
        assert run["samples"] == 4 * 90, "in the end it trains on all examples"
    assert {check["name"]: check["status"] for check in report["fairness"]}["Test data chose nothing"] == "holds"
    assert not list((tmp_path / "out" / "tuning").rglob("*.safetensors"))
