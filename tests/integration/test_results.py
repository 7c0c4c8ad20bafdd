"""What a ServerApp evaluates, prints, logs and writes comes back to the operator's machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import forked
from support.deployment import Deployment
from support.reporting_app import reporting_app


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("reporting")
    with Deployment.open(folder / "two", clients=2) as made:
        made.app = reporting_app(folder)
        made.start()
        yield made


def test_results_prints_and_files_come_home(here: Deployment, tmp_path: Path) -> None:
    done = here.submit().finish()
    assert done.status == 0, done.stderr
    person = tmp_path / "home" / "m.safetensors"
    person.parent.mkdir()
    command = ("run", here.app, "--operator", here.federation.operator, "--out", person)
    shown = forked(*command)
    again = forked(*command)
    lines = [event["line"] for event in done.of("log")]
    assert "centrally evaluated round 2" in lines
    assert any("own words of the app" in line for line in lines)
    assert not any("Starting FedAvg" in line for line in lines)
    assert sorted(done.summary["results"]["server"]) == ["0", "1", "2"]
    results = json.loads(done.model.with_name(f"{done.model.stem}.results.json").read_text())
    assert results == done.summary["results"]
    assert results["server"]["2"]["steps"] == [2.0] * 6
    assert sorted(results["train"]) == ["1", "2"]
    files = Path(done.summary["files"])
    assert (files / "curves" / "norm.txt").read_text() == str(results["server"]["2"]["norm"])

    assert shown.returncode == 0, shown.stderr
    assert "app: centrally evaluated round 1" in shown.stdout
    assert "evaluated by the ServerApp, round 2: norm " in shown.stdout
    assert f"files of the ServerApp saved to {person.parent}/m.files" in shown.stdout
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_a_run_that_fails_half_way_says_where_its_results_are(here: Deployment, tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    operator = here.federation.operator
    shown = forked("run", here.app, "--operator", operator, "--run-config", "raises=1", "--out", model)
    assert shown.returncode == 5, shown.stdout
    assert "the ServerApp raised ValueError: no test data" in shown.stderr
    assert f"results saved to {tmp_path}/m.results.json" in shown.stdout
    assert "the model is a checkpoint: the run did not finish, 1 round is in it" in shown.stdout
    results = json.loads((tmp_path / "m.results.json").read_text())
    assert [sorted(results[part]) for part in ("server", "train")] == [["0"], ["1"]]
