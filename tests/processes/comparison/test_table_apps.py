"""Apps of `fedcore new --csv` in the baselines: their columns' statistics, and a rate that falls over the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcore.cli.main import app as command
from fedcore.cli.new.examples import patients_csv
from fedcore.comparison.execution import execute_run
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.run import INITIAL_FILE, PlannedRun, worker_name
from fedcore.comparison.workers.models import first_of
from fedcore.comparison.workers.training import snapshot, train_alone
from fedcore.flower.app import FlowerApp
from fedcore.state import ModelState
from fedcore.wire.events import ignore

ONE_STEP = {"local-epochs": 1, "batch-size": 0}


@pytest.fixture
def table_app(tmp_path: Path) -> FlowerApp:
    """As the command writes it."""
    table = tmp_path / "patients.csv"
    table.write_text(patients_csv())
    made = CliRunner().invoke(command, ["new", str(tmp_path / "app"), "--csv", str(table), "--target", "died"])
    assert made.exit_code == 0, made.output
    return FlowerApp.load(tmp_path / "app")


def planned(app: FlowerApp, mode: str, folder: Path, **config: Any) -> PlannedRun:
    (chosen,) = parse_modes(mode)
    config = {**app.run_config, "csv": str(app.folder.parent / "patients.csv"), "num-server-rounds": 2, **config}
    return PlannedRun(app=app, chosen=chosen, config=config, settings={}, sites=3, seed=1, folder=folder)


@pytest.mark.parametrize("mode", ["centralized", "allreduce"])
def test_the_baselines_train_as_the_app_says(table_app: FlowerApp, mode: str, tmp_path: Path) -> None:
    result = execute_run(planned(table_app, mode, tmp_path / mode), ignore)
    assert (result.status, result.reason) == ("finished", "")
    first, *_, last = (float(np.mean(point.metrics["loss"])) for point in result.curve)
    assert last < first


def test_a_rate_that_falls_over_the_rounds_falls_at_a_site_alone(table_app: FlowerApp, tmp_path: Path) -> None:
    models = {}
    for shape in ("constant", "linear"):
        run = planned(table_app, "local", tmp_path / shape, **ONE_STEP, **{"lr-over-rounds": shape})
        run.folder.mkdir()
        first_of(run).model.save(run.folder / INITIAL_FILE)
        train_alone(lambda report: None, run, 0)
        models[shape] = [ModelState.open(snapshot(run.folder / worker_name(0), number)) for number in (1, 2)]
    moved = False
    for name, first in models["constant"][0].items():
        assert np.array_equal(first, models["linear"][0][name])
        steps = [np.asarray(models[shape][1][name] - first) for shape in ("constant", "linear")]
        assert steps[1] == pytest.approx(steps[0] / 2, rel=1e-3, abs=1e-7)
        moved |= bool(np.abs(steps[0]).max() > 1e-3)
    assert moved
