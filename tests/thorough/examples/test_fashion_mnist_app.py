"""examples/fashion_mnist on the real images, with the smallest work that shows something."""

import pytest
from flwr.app import ArrayRecord

from tests.thorough.examples.flower_messages import app_modules, context, message, run_config


@pytest.fixture(autouse=True)
def real_data(data_dir, monkeypatch):
    monkeypatch.setenv("FEDCORE_DATA", str(data_dir))


def test_a_small_cnn_learns_from_one_client_of_twenty():
    config = run_config("fashion_mnist", partition="iid", batch_size=16, lr=0.02)
    node = context(config, 7, 20)
    with app_modules("fashion_mnist") as (task, client, _):
        start = ArrayRecord(task.initial_model(config).state_dict())
        before = client.app(message("evaluate", start, 1, 8), node).content["metrics"]
        trained = client.app(message("train", start, 1, 8), node).content
        after = client.app(message("evaluate", trained["arrays"], 1, 8), node).content["metrics"]
    assert trained["metrics"]["num-examples"] == 3000
    assert after["num-examples"] == 500
    # Guessing is right one time in ten.
    assert before["eval_acc"] < 0.2
    assert after["eval_acc"] > 0.5


def test_a_residual_network_takes_the_same_images():
    config = run_config("fashion_mnist", model="resnet18", partition="iid", batch_size=30)
    node = context(config, 0, 2000)
    with app_modules("fashion_mnist") as (task, client, _):
        start = client.app.initial_arrays(config)
        assert sum(p.numel() for p in task.initial_model(config).parameters()) == 11_172_810
        trained = client.app(message("train", start, 1, 1), node).content
    assert trained["metrics"]["num-examples"] == 30
    assert list(trained["arrays"]) == list(start)


def test_clients_hold_the_whole_data_set_between_them():
    config = run_config("fashion_mnist")
    with app_modules("fashion_mnist") as (task, _, _):
        parts = [task.local_data(config["partition"], i, 3, 42) for i in range(3)]
    assert sum(len(train) for train, _ in parts) == 60_000
    assert sum(len(test) for _, test in parts) == 10_000
