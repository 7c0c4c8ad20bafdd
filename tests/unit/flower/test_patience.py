"""A run ends when its test loss has not fallen for some rounds, and says where it was least."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.raising import raises
from torch import nn

import fedcore
from fedcore import LocalJob, Split, averaging_server, supervised_app
from fedcore.errors import ConfigurationError
from fedcore.flower.strategies.metrics import finish
from fedcore.flower.strategies.patience import LossFallsNoMore, LossHistory
from fedcore.training import OptimizerConfig, seeded

RNG = np.random.default_rng(0)
ROWS = Split(x=RNG.normal(size=(40, 3)).astype(np.float32), y=RNG.integers(0, 2, 40))


def history(*losses: float, patience: int = 0) -> LossHistory:
    losses_so_far = LossHistory(patience)
    aggregation = losses_so_far.watching(finish(()))
    for loss in losses:
        for step in aggregation.steps:
            assert step({"eval_loss": loss}, 10.0) == {}
    return losses_so_far


def test_of_equal_losses_the_first_is_the_least() -> None:
    assert history().rounds_since_least == 0
    assert history(0.5, 0.25, 0.25, 0.3).rounds_since_least == 2
    assert history(0.5, 0.25, 0.249999).rounds_since_least == 1
    assert history(0.5, float("nan"), 0.25).losses == [0.5, 0.25]


def test_a_hint_comes_with_a_loss_that_rises_and_with_no_other() -> None:
    assert history(0.5, 0.4).hint() == ""
    assert history(0.4, 0.401).hint() == ""
    assert "1 of 2 (0.4000)" in history(0.4, 0.5).hint()


def test_it_ends_a_run_only_when_it_is_over() -> None:
    losses = history(0.3, 0.4, patience=2)
    test = losses.limiting(None)
    assert test is not None
    assert test(2, None) is None  # type: ignore[arg-type]
    losses.losses.append(0.5)
    with pytest.raises(LossFallsNoMore):
        test(3, None)  # type: ignore[arg-type]
    assert LossHistory(0).limiting(None) is None
    with raises(ConfigurationError, check="patience"):
        LossHistory.of({"patience": -1})


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
@pytest.mark.parametrize(("rate", "rounds"), [(1e-4, 3), (0.1, 6)])
def test_a_run_that_learns_nothing_more_ends_early(aggregation: Any, rate: float, rounds: int) -> None:
    """With no step to speak of the loss is the same in each round, so that the run ends after 1 + 2 of them."""

    def model(config: Mapping[str, Any]) -> nn.Module:
        with seeded(3):
            return nn.Linear(3, 2)

    def data(job: LocalJob) -> tuple[Split, Split]:
        rows = np.arange(int(job.node["partition-id"]), len(ROWS), int(job.node["num-partitions"]))
        return ROWS.take(rows), ROWS.take(rows)

    app = supervised_app(model=model, optimizer=lambda config: OptimizerConfig(lr=rate), data=data)
    config = {"num-server-rounds": 6, "patience": 2, "local-epochs": 1, "batch-size": 0, "seed": 0}
    run = fedcore.simulate(
        (app, averaging_server(app)), clients=3, aggregation=aggregation, run_config=config, progress=False
    )
    assert len(run.history) == rounds
    assert run.model is not None
