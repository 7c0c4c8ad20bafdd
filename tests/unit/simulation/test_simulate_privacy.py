"""Whole runs with differential privacy in memory, an unmodified Flower app on top."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.raising import raises
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.codec.privacy import grid_scale, rounded_norm_squared
from fedcore.errors import EncodingError

Simulate = Callable[..., Any]
STEADY = Path(__file__).parents[2] / "apps" / "steady"
PRIVATE = {"dp-noise-multiplier": 1.0}
SIZE = 20_000
SIGMAS = 6.5
"""The noise is fresh in each run: further away than this with probability 8e-11."""


def standard_deviation(survivors: int, shares: int) -> float:
    """Of the noise in the mean over `survivors`, noise multiplier and clipping norm 1."""
    scale = grid_scale(SIZE)
    share = math.sqrt(rounded_norm_squared(scale, SIZE) / shares) / scale
    return share / math.sqrt(survivors)


def test_the_model_is_the_mean_and_the_promised_noise(simulate: Simulate) -> None:
    done = simulate(7, app=STEADY, settings=PRIVATE, norm=0.5, fraction_evaluate=0.0)
    weight = np.asarray(done.state["weight"], np.float64)
    noise = standard_deviation(7, shares=3)  # of the five that are sure, the masks would let two collude
    assert weight.mean() == pytest.approx(0.5 / math.sqrt(SIZE), abs=SIGMAS * noise / math.sqrt(SIZE))
    assert weight.std() == pytest.approx(noise, rel=SIGMAS * math.sqrt(0.5 / SIZE))
    (train,) = done.of("exchange-done")
    assert (train["examples"], train["metrics"]) == (7, {})


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_dropouts_leave_at_least_the_promised_noise(simulate: Simulate, seed: int) -> None:
    done = simulate(7, app=STEADY, settings=PRIVATE, drop=0.25, seed=seed, fraction_evaluate=0.0)
    (train,) = done.of("exchange-done")
    survivors = len(train["survivors"])
    assert 5 <= survivors < 7
    total = np.asarray(done.state["weight"], np.float64).std() * survivors
    promised = math.sqrt(rounded_norm_squared(grid_scale(SIZE), SIZE)) / grid_scale(SIZE)
    assert total >= promised * (1 - SIGMAS * math.sqrt(0.5 / SIZE))


def test_metrics_come_with_noise(simulate: Simulate) -> None:
    settings = {"dp-noise-multiplier": 0.5, "dp-metric-bound": 1.0, "evaluate-metrics": ["accuracy"]}
    done = simulate(12, app=STEADY, settings=settings, size=10, accuracy=0.75, num_server_rounds=3)
    exchanges = done.of("exchange-done")
    errors = [abs(evaluated["metrics"]["accuracy"] - 0.75) for evaluated in exchanges[1::2]]
    # The noise multiplier, over 4 of 12 clients. One error in 800 is nought by chance: the noise has steps.
    assert max(errors) < SIGMAS * 0.5 / math.sqrt(4 * 12)
    assert len(errors) == 3
    assert any(errors), "there is no noise"
    spent = [done["epsilon_spent"] for done in exchanges]
    assert spent == sorted(set(spent)), "evaluations cost too"


def test_the_budget_ends_the_run_before_the_exchange_that_would_exceed_it(simulate: Simulate) -> None:
    settings = {"dp-epsilon": 4.0, "dp-rounds": 3}
    done = simulate(4, app=STEADY, settings=settings, num_server_rounds=9, size=50)
    spent = [data["epsilon_spent"] for data in done.of("exchange-done")]
    assert len(spent) == 3
    assert spent == sorted(spent)
    assert 3.98 < spent[-1] <= 4.0
    (ended,) = done.of("ended")
    assert ended["status"] == "finished"
    assert ended["reason"].startswith("privacy-budget: ")
    assert done.state is not None
    assert np.any(done.state["weight"]), "the last model, not the first"


def test_integer_tensors_are_refused_with_the_alternative(simulate: Simulate) -> None:
    with raises(EncodingError, check="integer-tensor", match="'counter'"):
        simulate(3, settings={**PRIVATE, "clip-norm": 1.0})


def test_the_command_says_epsilon_and_ends_with_status_6(tmp_path: Path) -> None:
    command = [
        "simulate",
        "--engine",
        "inline",
        str(STEADY),
        "--clients",
        "3",
        "--run-config",
        "num-server-rounds=3",
        "--json",
    ]
    command += ["--set", "dp-epsilon=5 dp-rounds=2", "--out", str(tmp_path / "model.safetensors")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 6
    summary = json.loads(result.stdout)
    assert summary["status"] == "finished"
    assert 4.9 < summary["epsilon_spent"] <= 5
    assert summary["privacy"]["epsilon_budget"] == 5
    assert summary["samples"] == 0
    assert (tmp_path / "model.safetensors").exists()
    assert "differential privacy of each client: skellam" in result.stderr
    assert "epsilon 4." in result.stderr


def test_without_a_bound_for_metrics_clients_are_not_asked(simulate: Simulate) -> None:
    done = simulate(4, app=STEADY, settings=PRIVATE, num_server_rounds=2)
    assert [data["message_type"] for data in done.of("exchange-done")] == ["train", "train"]
