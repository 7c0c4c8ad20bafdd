"""examples/air: twelve stations with missing values, which the federation's means fill in."""

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score, root_mean_squared_error
from support.simulated import simulate
from typer.testing import CliRunner

from fedcore.cli.main import app as command
from tests.thorough.examples.flower_messages import EXAMPLES, app_modules

__all__ = ["simulate"]


@pytest.fixture(scope="module")
def task():
    with app_modules("air") as (found, _, _):
        return found


@pytest.fixture(scope="module")
def stations(task):
    return [task.hours(station, 42) for station in range(12)]


def test_every_station_misses_something_and_one_most_of_its_ozone(task, stations):
    missing = [np.isnan(train.x).mean(axis=0) for train, _ in stations]
    assert all((share > 0).all() for share in missing)
    ozone = [share[task.COLUMNS.index("O3")] for share in missing]
    assert ozone[3] > 0.9
    assert max(ozone[:3] + ozone[4:]) < 0.2
    assert not any(np.isnan(part.y).any() for station in stations for part in station)


def test_the_figures_are_those_of_all_stations_hours_together(simulate, task, stations, capfd):
    """By scikit-learn over the pooled test parts, standardised and filled in by NumPy."""
    done = simulate(12, app=EXAMPLES / "air")
    model = task.initial_model(0)
    model.load_state_dict({name: torch.tensor(array.copy()) for name, array in done.state.items()})
    x = np.concatenate([train.x for train, _ in stations]).astype(np.float64)
    mean, std = np.nanmean(x, axis=0), np.nanstd(x, axis=0)
    test = np.concatenate([np.nan_to_num((part.x - mean) / std) for _, part in stations])
    y = np.concatenate([part.y for _, part in stations])
    with torch.no_grad():
        output = model(torch.tensor(test, dtype=torch.float32)).squeeze(1)
    r2, rmse = r2_score(y, output), root_mean_squared_error(y, output)
    assert f"round 15: r2 {r2:.4f}  rmse {rmse:.4f}" in capfd.readouterr().out
    assert r2 > 0.8


def test_its_statistics_need_no_options() -> None:
    done = CliRunner().invoke(command, ["stats", str(EXAMPLES / "air"), "--clients", "12"])
    assert done.exit_code == 0, done.output
    assert "HOUR " in done.stdout
    assert "of 12 clients" in done.output
