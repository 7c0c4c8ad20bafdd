"""examples/mnist on the real images: the models and the splits of McMahan et al. (2017)."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import ArrayRecord

from fedcore.errors import UnknownKey
from tests.thorough.examples.flower_messages import app_modules, context, message, run_config


@pytest.fixture(autouse=True)
def real_data(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCORE_DATA", str(data_dir))


def test_each_of_a_hundred_clients_has_two_shards_of_three_hundred_and_hardly_two_digits() -> None:
    with app_modules("mnist") as (task, _, _):
        parts = [task.local_data("shards:2", client, 100, 42)[0] for client in range(100)]
    assert {len(part) for part in parts} == {600}
    digits = [len(set(part.y.tolist())) for part in parts]
    # A shard of 300 may lie across the border of two digits.
    assert max(digits) <= 4
    assert sum(digits) / 100 < 2.5


def test_the_models_have_the_papers_parameters() -> None:
    with app_modules("mnist") as (task, _, _):
        for name, count in (("2nn", 199_210), ("cnn", 1_663_370), ("lenet", 44_426)):
            model = task.initial_model(run_config("mnist", model=name))
            assert sum(p.numel() for p in model.parameters()) == count
        with pytest.raises(UnknownKey, match="'cnn'"):
            task.initial_model(run_config("mnist", model="cn"))


def test_a_client_of_ten_learns() -> None:
    config = run_config("mnist")
    node = context(config, 3, 10)
    with app_modules("mnist") as (_, client, server):
        start = client.app.initial_arrays(config)
        before = client.app(message("evaluate", start, 1, 4), node).content["metrics"]
        trained = client.app(message("train", start, 1, 4), node).content
        assert isinstance(trained["arrays"], ArrayRecord)
        after = client.app(message("evaluate", trained["arrays"], 1, 4), node).content["metrics"]
        assert len(server.whole().test) == 10_000
    assert before["eval_acc"] < 0.3
    assert after["eval_acc"] > 0.85
