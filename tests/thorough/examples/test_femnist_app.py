"""examples/femnist on the real characters, with the smallest work that shows something."""

import functools

import pytest
from flwr.app import ArrayRecord

from tests.thorough.examples.flower_messages import app_modules, context, message, run_config


@pytest.fixture(autouse=True)
def real_data(data_dir, monkeypatch):
    monkeypatch.setenv("FEDCORE_DATA", str(data_dir))


def test_one_client_of_ten_learns_its_writers_hands():
    config = run_config("femnist", local_epochs=3)
    node = context(config, 3, 10)
    with app_modules("femnist") as (task, client, _):
        start = ArrayRecord(task.initial_model(42).state_dict())
        before = client.app(message("evaluate", start, 1, 10), node).content["metrics"]
        trained = client.app(message("train", start, 1, 10), node).content
        after = client.app(message("evaluate", trained["arrays"], 1, 10), node).content["metrics"]
    # Guessing is right one time in sixty-two.
    assert before["eval_acc"] < 0.1
    assert after["eval_acc"] > 0.4


def test_every_writer_is_a_client(monkeypatch):
    with app_modules("femnist") as (task, _, _):
        # A hundred clients in one process, where one has a process of its own.
        monkeypatch.setattr(task, "load_femnist", functools.cache(task.load_femnist))
        parts = [task.local_data("natural", i, 105, 42) for i in range(105)]
    assert sum(len(train) for train, _ in parts) == 14_708
    assert all(len(set(train.groups)) == 1 for train, _ in parts)
