"""examples/shakespeare on the real plays, with the smallest work that shows something."""

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedcore.data import load_shakespeare
from fedcore.data.published.shakespeare import NO_TARGET
from tests.thorough.examples.flower_messages import app_modules, context, message, project, run_app, run_config


@pytest.fixture(autouse=True)
def real_data(data_dir, monkeypatch):
    monkeypatch.setenv("FEDCORE_DATA", str(data_dir))


def test_one_client_learns_to_guess_characters():
    config = run_config("shakespeare")
    node = context(config, 30, 400)
    with app_modules("shakespeare") as (task, client, _):
        start = ArrayRecord(task.initial_model(config).state_dict())
        before = client.app(message("evaluate", start, 1, 31), node).content["metrics"]
        trained = client.app(message("train", start, 1, 31), node).content
        after = client.app(message("evaluate", trained["arrays"], 1, 31), node).content["metrics"]
    # Equal chances for 75 characters cost ln 75 = 4.32; the frequencies of characters alone about 3.2.
    assert before["eval_loss"] == pytest.approx(np.log(75), abs=0.05)
    assert after["eval_loss"] < 3.6


def test_a_gpt_learns_to_guess_characters_too():
    config = run_config("shakespeare", model="gpt-1m", optimizer="adam", lr=1e-3)
    node = context(config, 30, 400)
    with app_modules("shakespeare") as (task, client, _):
        start = client.app.initial_arrays(config)
        assert sum(p.numel() for p in task.initial_model(config).parameters()) == pytest.approx(1e6, rel=0.06)
        before = client.app(message("evaluate", start, 1, 31), node).content["metrics"]
        trained = client.app(message("train", start, 1, 31), node).content
        after = client.app(message("evaluate", trained["arrays"], 1, 31), node).content["metrics"]
    assert after["eval_loss"] < before["eval_loss"] - 0.5


def test_every_role_is_a_client_and_results_count_characters():
    data = load_shakespeare()
    config = run_config("shakespeare")
    with app_modules("shakespeare") as (task, client, _):
        parts = [task.local_data("natural", i, 1160, 42) for i in (0, 500, 1159)]
        start = ArrayRecord(task.initial_model(config).state_dict())
        tested = client.app(message("evaluate", start, 1, 501), context(config, 500, 1160)).content["metrics"]
    assert data.classes == task.VOCABULARY
    for i, (train, test) in zip((0, 500, 1159), parts, strict=True):
        assert set(train.groups) == set(test.groups) == {i}
        assert len(train) == (data.train.groups == i).sum()
    counted = np.bincount(data.test.groups, weights=(data.test.y != NO_TARGET).sum(axis=1))
    assert tested["num-examples"] == counted[500]
    # Two clients with all roles between them can report what they hold, and so can one.
    assert counted.sum() <= project("shakespeare")["tool"]["fedcore"]["w-max"]


def test_the_same_seed_draws_the_same_roles():
    settings = {"num_server_rounds": 1, "fraction_train": 0.002, "fraction_evaluate": 0.0, "batch_size": 0}

    def drawn(seed):
        grid = run_app("shakespeare", clients=1160, seed=seed, **settings)
        return [each.metadata.src_node_id for each in grid.replies]

    first = drawn(1)
    # A fifth of a per cent of 1,160 nodes.
    assert len(first) == 2
    assert drawn(1) == first
    assert drawn(2) != first
