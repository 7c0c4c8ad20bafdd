"""examples/heart_disease: four real hospitals, each one client."""

import numpy as np
import pytest

from fedcore.data import load_heart_disease
from fedcore.training import evaluate, local_engine
from tests.thorough.examples.flower_messages import app_modules, pooled, project, run_app


@pytest.fixture(autouse=True)
def real_data(data_dir, monkeypatch):
    monkeypatch.setenv("FEDCORE_DATA", str(data_dir))


def final_model(grid):
    """The mean of the last round's updates, weighted by examples, loaded into the app's model."""
    replies = grid.rounds("train")[-1]
    weights = [r["metrics"]["num-examples"] for r in replies]
    states = [r["arrays"].to_torch_state_dict() for r in replies]
    with app_modules("heart_disease") as (task, _, _):
        model = task.initial_model(0)
    model.load_state_dict(
        {name: sum(s[name] * w for s, w in zip(states, weights, strict=True)) / sum(weights) for name in states[0]}
    )
    return model


def test_four_hospitals_with_the_settings_of_flamby():
    grid = run_app("heart_disease", clients=4)
    assert len(grid.rounds("train")) == 15
    trained = grid.rounds("train")[-1]
    # A strategy samples the nodes in an order of its own.
    assert sorted(r["metrics"]["num-examples"] for r in trained) == [30, 85, 172, 199]
    # Published: 73.1, 71.9, 65.0, 64.0 by hospital, that is 70.5 weighted; the spread of a seed
    # is about 2 to 10 by hospital, since 15 rounds do not converge from random weights.
    weighted = [pooled(replies, "eval_acc") for replies in grid.rounds("evaluate")]
    assert 0.62 < weighted[-1] < 0.80
    losses = [pooled(replies, "eval_loss") for replies in grid.rounds("evaluate")]
    assert losses[-1] < losses[0]
    # Published pooled test: 74.8 +- 2.4; rebuilt 76.3 +- 2.4.
    everything = load_heart_disease(standardise="pooled").test
    assert evaluate(local_engine(final_model(grid)), everything).accuracy == pytest.approx(0.76, abs=0.08)


def test_central_training_is_the_same_app_with_one_partition():
    grid = run_app(
        "heart_disease",
        clients=1,
        num_server_rounds=1,
        local_steps=0,
        local_epochs=10,
        optimizer="adam",
        standardise="pooled",
    )
    ((trained,),), ((tested,),) = grid.rounds("train"), grid.rounds("evaluate")
    assert trained["metrics"]["num-examples"] == 486
    whole = evaluate(local_engine(final_model(grid)), load_heart_disease(standardise="pooled").test)
    assert tested["metrics"]["num-examples"] == whole.examples == 254
    assert tested["metrics"]["eval_acc"] == whole.accuracy > 0.7


def test_every_hospital_standardises_by_itself():
    with app_modules("heart_disease") as (task, _, _):
        parts = [task.local_data("natural", i, 4, 42, "site")[0] for i in range(4)]
    for part in parts:
        np.testing.assert_allclose(part.x.mean(axis=0, dtype=np.float64), 0, atol=1e-6)
        assert len(np.unique(part.groups)) == 1


def test_fourteen_parameters_travel_in_wide_fields():
    assert project("heart_disease")["tool"]["fedcore"]["field-bits"] == 32
