"""Apps with a loss and metrics of their own in the baselines, each through its real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedcore.comparison.execution import execute_run
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.results import RunResult
from fedcore.comparison.run import MODEL_FILE, PlannedRun
from fedcore.comparison.workers.models import first_of
from fedcore.comparison.workers.problem import Problem
from fedcore.flower.app import FlowerApp
from fedcore.state import ModelState
from fedcore.training import evaluate, local_engine
from fedcore.training.metrics import c_index
from fedcore.wire.events import ignore

# The fork server may need long to import torch.

ROOT = Path(__file__).parents[3]
SURVIVAL = ROOT / "tests" / "apps" / "survival"


def planned(mode: str, folder: Path, app: Path = SURVIVAL, **config: Any) -> PlannedRun:
    found = FlowerApp.load(app)
    (chosen,) = parse_modes(mode)
    return PlannedRun(
        app=found,
        chosen=chosen,
        config={**found.run_config, **config},
        settings={},
        sites=2,
        seed=1,
        folder=folder,
    )


def carried_out(mode: str, folder: Path) -> RunResult:
    result = execute_run(planned(mode, folder), ignore)
    assert (result.status, result.reason) == ("finished", "")
    return result


@pytest.mark.parametrize("mode", ["centralized", "local", "local-sgd[h=2]", "ps-ssp"])
def test_a_loss_over_batches_trains_where_every_worker_has_batches_of_its_own(tmp_path: Path, mode: str) -> None:
    result = carried_out(mode, tmp_path)
    assert result.samples == 2 * 2 * 48
    three = {"c_index", "c_index/all_pairs", "c_index/mean_of_sites"}
    assert [set(point.metrics) for point in result.curve] == [{*three, "mean_risk", "loss"}] * 3
    assert result.metrics["loss"] < result.curve[0].metrics["loss"]
    assert result.metrics["c_index"] > result.curve[0].metrics["c_index"]
    assert [set(site.everywhere) for site in result.sites] == [set(result.metrics) if mode == "local" else set()] * 2


def test_sums_are_added_over_the_sites(tmp_path: Path) -> None:
    """The c-index of all is neither that of pooled examples nor the mean of the sites'."""
    result = carried_out("centralized", tmp_path)
    problem = Problem.of(planned("centralized", tmp_path))
    model = torch.nn.Linear(4, 1, bias=False)
    model.weight.data = torch.from_numpy(ModelState.open(tmp_path / MODEL_FILE)["weight"].copy())
    engine = local_engine(model, loss=problem.app.loss)
    sums = [evaluate(engine, problem.test(site), metrics=[c_index]).sums["c_index"] for site in (0, 1)]
    added = torch.tensor(sums, dtype=torch.float64).sum(dim=0)
    assert result.metrics["c_index"] == pytest.approx(c_index.value(added))
    each = [c_index.value(torch.tensor(one, dtype=torch.float64)) for one in sums]
    assert [site.metrics["c_index"] for site in result.sites] == pytest.approx(each)


def test_a_mode_that_would_divide_a_batch_fails_by_name(tmp_path: Path) -> None:
    """Where nobody asked before it started."""
    result = execute_run(planned("centralized[ranks=2]", tmp_path), ignore)
    assert result.status == "failed"
    assert "cox" in result.reason


def test_the_first_model_is_found_behind_the_questions_of_an_app(tmp_path: Path) -> None:
    state = first_of(planned("local", tmp_path, ROOT / "examples" / "cox")).model
    assert sum(spec.size for spec in state.layout.specs) == 39
