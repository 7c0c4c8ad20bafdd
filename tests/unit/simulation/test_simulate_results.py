"""What an app finds in a simulation comes home: metrics by round, files, prints; and lists that a person can read."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.server import History
from flwr.serverapp.strategy import Result
from support.raising import raises
from support.reporting_app import reporting_app
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.errors import ConfigurationError
from fedcore.flower.output import quiet_flower
from fedcore.flower.results import results_of
from fedcore.monitoring.output_paths import OutputPaths
from fedcore.monitoring.progress import metrics_text

SIMULATE = ("simulate", "--engine", "inline")

APPS = Path(__file__).parents[2] / "apps"
STEADY, LEGACY = APPS / "steady", APPS / "legacy"


def test_results_and_files_stand_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reporting = reporting_app(tmp_path)
    before = set(tmp_path.iterdir())
    command = [*SIMULATE, reporting.name, "--clients", "3", "--out", "out/m.safetensors"]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    assert set(tmp_path.iterdir()) - before == {tmp_path / "out"}, "nothing litters the current folder"
    results = json.loads((tmp_path / "out/m.results.json").read_text())
    assert sorted(results) == ["evaluate", "server", "train"]
    assert sorted(results["server"]) == ["0", "1", "2"]
    assert results["server"]["2"]["steps"] == [2.0] * 6
    assert (tmp_path / "out/m.files/curves/norm.txt").read_text() == str(results["server"]["2"]["norm"])
    summary = json.loads(done.stdout)
    assert summary["results"] == results
    assert summary["files"] == "out/m.files"
    assert "centrally evaluated round 2" in done.stderr
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "exists already" in again.output
    again = CliRunner().invoke(app, [*command, "--force"])
    assert again.exit_code == 0
    assert summary["model"] == "out/m.safetensors"
    for line in ("model saved to out/m.safetensors", "results saved to out/m.results.json", "saved to out/m.files"):
        assert line in again.stdout


def test_a_run_that_fails_half_way_leaves_what_there_is(tmp_path: Path) -> None:
    failing = reporting_app(tmp_path, name="failing_app", raises=1)
    command = [*SIMULATE, str(failing), "--clients", "3", "--out", str(tmp_path / "m.safetensors")]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, ValueError)
    results = json.loads((tmp_path / "m.results.json").read_text())
    assert [sorted(results[part]) for part in ("server", "train")] == [["0"], ["1"]]
    assert f"results saved to {tmp_path}/m.results.json" in done.stderr
    assert not (tmp_path / "m.safetensors").exists()


def test_a_spent_budget_leaves_what_there_is(tmp_path: Path) -> None:
    noised = [word for pair in ("dp-epsilon=4", "dp-rounds=3") for word in ("--set", pair)]
    command = [*SIMULATE, str(STEADY), "--clients", "7", "--policy", "own", "--out", str(tmp_path / "m.safetensors")]
    config = ["--run-config", "size=10 num-server-rounds=50 fraction-evaluate=0.0"]
    done = CliRunner().invoke(app, [*command, *noised, *config, "--json"])
    assert done.exit_code == 6, done.output
    summary = json.loads(done.stdout)
    assert len(summary["results"]["train"]) == summary["rounds"] > 0
    assert json.loads((tmp_path / "m.results.json").read_text()) == summary["results"]


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
def test_a_legacy_app_leaves_its_history(tmp_path: Path, aggregation: str) -> None:
    command = [*SIMULATE, str(LEGACY), "--clients", "3", "--set", f"aggregation={aggregation}", "--json"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "m.safetensors")])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "m.results.json").read_text())
    assert {part: sorted(rounds) for part, rounds in results.items()} == {
        "train": [],
        "evaluate": ["1", "2"],
        "server": [],
    }
    assert json.loads(done.stdout)["rounds"] == 2, "a round is not an exchange"
    assert results["evaluate"]["2"]["loss"] == pytest.approx(2 * 0.25 * (10 + 40 + 90) / 60, rel=1e-3)


def test_a_history_becomes_metrics_by_round() -> None:
    history = History()
    history.add_loss_centralized(0, 2.5)
    history.add_metrics_centralized(0, {"accuracy": cast(Any, np.float32(0.5)), "note": b"raw"})
    history.add_metrics_distributed_fit(1, {"train_loss": 3.0})
    history.add_loss_distributed(1, 1.5)
    assert json.loads(json.dumps(results_of(history))) == {
        "train": {"1": {"train_loss": 3.0}},
        "evaluate": {"1": {"loss": 1.5}},
        "server": {"0": {"accuracy": 0.5, "note": "b'raw'", "loss": 2.5}},
    }


def test_a_run_that_found_nothing_leaves_no_results() -> None:
    assert results_of(Result()) == results_of(History()) == results_of(None) == {}


@pytest.mark.parametrize("taken", ["m.safetensors", "m.results.json", "m.files", "m.card.md"])
def test_nothing_is_written_over(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).touch()
    home = OutputPaths.next_to(tmp_path / "m.safetensors")
    with raises(ConfigurationError, check="exists", match=re.escape(taken)):
        home.check_free(force=False)
    home.check_free(force=True)


@pytest.mark.parametrize("place", ["file/m.safetensors", "folder"])
def test_where_no_model_can_be_saved_is_known_before_the_run(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    OutputPaths.next_to(tmp_path / "new" / "m.safetensors").check_free(force=False)
    with pytest.raises(ConfigurationError, match=f"--best.*{place.partition('/')[0]}"):
        OutputPaths.next_to(tmp_path / place).check_free(force=True, option="--best")


def test_lists_show_what_is_in_them() -> None:
    metrics = {"acc": 0.5, "few": [1.0, 2.0], "many": [float(i) for i in range(6)], "auc/sums": [1.0, 2.0], "n": 3}
    assert metrics_text(metrics) == (
        "acc 0.5000  few [1.0000, 2.0000]  many [0.0000, 1.0000, 2.0000, 3.0000, ... 6 values]  n 3"
    )


def test_flowers_own_lines_are_left_out_and_an_apps_are_not(caplog: pytest.LogCaptureFixture) -> None:
    from flwr.common.logger import log
    from flwr.serverapp.strategy import FedAvg

    logger = logging.getLogger("flwr")
    filters = list(logger.filters)
    try:
        quiet_flower()
        with caplog.at_level(logging.INFO, "flwr"):
            log(logging.INFO, "an app's own words")
            FedAvg().summary()
            logger.warning("take care")
    finally:
        logger.filters[:] = filters
    assert [record.getMessage() for record in caplog.records] == ["an app's own words", "take care"]


def test_without_clients_there_are_as_many_as_the_app_wants(tmp_path: Path) -> None:
    reporting = reporting_app(tmp_path)
    place = reporting / "pyproject.toml"
    before = place.read_text()
    assert "[tool.fedcore]\n" in before
    place.write_text(before.replace("[tool.fedcore]\n", "[tool.fedcore]\nsimulation-clients = 3\n"))
    done = CliRunner().invoke(app, [*SIMULATE, str(reporting), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["clients"] == 3
