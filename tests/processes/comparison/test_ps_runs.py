"""Parameter servers as real processes, on an app that starts at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fedcore.comparison.execution import execute_run
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.run import Kill, PlannedRun
from fedcore.comparison.workers.processes import Workers
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Cost, Network
from fedcore.state import ModelState
from fedcore.wire.events import ClientDropped

# The fork server may need long to import torch.

APP = Path(__file__).parents[2] / "apps" / "blobs"
STRAGGLERS = "bandwidth=10Mbit,latency=1ms,transient=0.2:10,slow=2:2,seed=4"


def silent(event):
    pass


@pytest.fixture
def make(tmp_path):
    app, number = FlowerApp.load(APP), iter(range(100))

    def build(word, *, sites=3, network=None, kill=None, **config):
        (chosen,) = parse_modes(word)
        folder = tmp_path / f"{next(number)}-{chosen.kind}"
        folder.mkdir()
        return PlannedRun(
            app=app,
            chosen=chosen,
            config={**app.run_config, **config},
            settings={},
            sites=sites,
            seed=3,
            folder=folder,
            network=Network.parse(network) if network else None,
            cost=Cost(step=0.01, example=0.001),
            kill=kill,
        )

    return build


def train(run, emit=silent):
    """The result of a run that finishes, and its last model."""
    result = execute_run(run, emit)
    assert result.status == "finished", result.reason
    return result, dict(ModelState.open(run.folder / "model.safetensors"))


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], rtol=2e-4, atol=1e-6, err_msg=name)


def test_one_step_for_all_workers_is_the_step_of_centralized_training(make):
    central, expected = train(make("centralized[global-batch=12]"))
    seen = []
    for word in ("ps-sync[global-batch=12]", "ps-sync[global-batch=12,shards=2]"):
        run = make(word)
        result, model = train(run, lambda event: seen.append(event.kind))
        assert_same(model, expected)
        assert result.initial_sha256 == central.initial_sha256
        assert [point.samples for point in result.curve] == [point.samples for point in central.curve] == [0, 150, 300]
        assert result.metrics["loss"] == pytest.approx(central.metrics["loss"], rel=1e-3)
        assert result.steps == dict.fromkeys(["client-1", "client-2", "client-3"], 26)
        assert (result.staleness.clocks, result.staleness.updates) == ({0: 78}, {0: 78})
        # 26 gradients of 74 numbers and as many models, with their headers.
        for counted in (*result.bytes_up.values(), *result.bytes_down.values()):
            assert 26 * 74 * 4 < counted < 26 * (74 * 4 + 1000)
        assert sorted(path.name for path in run.folder.iterdir()) == [
            "initial.safetensors",
            "logs",
            "model.safetensors",
        ]
    assert seen == ["started", *["exchange-done"] * 3, "ended"] * 2


def test_one_asynchronous_worker_is_centralized_training(make):
    options = {"sites": 1, "norm": True, "optimizer": "adam", "lr": 0.01}
    _, expected = train(make("centralized", **options))
    result, model = train(make("ps-async[shards=2]", **options))
    # Integer buffers stay as they began, which is said in the documentation.
    assert int(model.pop("1.num_batches_tracked")) == 0
    assert int(expected.pop("1.num_batches_tracked")) == 10
    assert_same(model, expected)
    assert result.staleness.updates == {0: 10}


def test_stale_models_stay_within_the_bound_and_a_run_repeats_bit_for_bit(make):
    words = ["ps-ssp[s=1]", "ps-ssp[s=1]", "ps-ssp[s=1,shards=2]", "ps-async"]
    (first, _), (again, _), (sharded, model), (free, _) = (train(make(word, network=STRAGGLERS)) for word in words)
    assert (first.model_sha256, first.staleness) == (again.model_sha256, again.staleness)
    times = [[point.simulated_seconds for point in result.curve] for result in (first, again)]
    assert times[0] == times[1] == sorted(times[0])
    assert set(first.staleness.clocks) == set(sharded.staleness.clocks) == {0, 1}
    assert max(free.staleness.clocks) > 1
    assert free.simulated_seconds < first.simulated_seconds
    assert free.samples == first.samples == 300
    # Two shards have two links, so that times differ, but not what was trained.
    assert np.isfinite(model["0.weight"]).all()


@pytest.mark.parametrize(
    ("word", "words"), [("ps-async", "waited for it no more"), ("ps-sync", "mean over their examples")]
)
def test_a_killed_worker_is_missed_by_nobody(make, word, words):
    """It waits for its end from the end of round 1 on, whoever is slow: without it are three rounds of the others."""
    told = []
    result, _ = train(make(word, kill=Kill(site=1, round=1), **{"num-server-rounds": 4}), told.append)
    (dropped,) = (event for event in told if isinstance(event, ClientDropped))
    assert dropped.client == "client-2"
    why, _, rest = dropped.reason.partition("; ")
    assert why == "ended by SIGKILL" or why.startswith("client-2 is gone: its process ended, or was silent")
    assert words in rest
    assert "logs/client-2.log" in rest
    (loss,) = result.losses
    assert (loss.worker, words in loss.consequence, 0 <= loss.seconds < 60) == ("client-2", True, True)
    if word == "ps-sync":
        # Of the 19 steps of a round.
        assert result.steps == {"client-1": 4 * 19, "client-2": 19, "client-3": 4 * 19}
        assert result.samples == 150 + 3 * (40 + 60)
    else:
        assert (result.steps["client-1"], result.steps["client-3"]) == (4 * 5, 4 * 8)
        # Alone it could come to three of its own rounds of 50 examples before 150 were seen.
        assert result.steps["client-2"] <= 3 * 7
        assert 4 * (40 + 60) <= result.samples <= 4 * (40 + 60) + 150
    assert result.curve[-1].samples == result.samples


def test_a_killed_shard_ends_the_run_with_a_reason(make, monkeypatch):
    class Instead(Workers):
        """Client-2 waits for its end, and the others for client-2."""

        def kill(self, name):
            assert name == "client-2"
            super().kill("shard-1")

    monkeypatch.setattr("fedcore.comparison.execution.Workers", Instead)
    result = execute_run(make("ps-ssp[s=1,shards=2]", kill=Kill(site=1, round=1), **{"num-server-rounds": 4}), silent)
    assert result.status == "failed"
    assert "shard-1 was lost in round" in result.reason
    assert "accuracy" in result.curve[1].metrics
    assert not dataclasses.asdict(result)["sites"]


def test_a_worker_that_is_lost_before_the_training_ends_the_run(make, monkeypatch):
    class Killing(Workers):
        def start(self, name, target, *args):
            super().start(name, target, *args)
            if name == "client-2":
                self.kill(name)

    monkeypatch.setattr("fedcore.comparison.execution.Workers", Killing)
    result = execute_run(make("ps-ssp"), silent)
    assert (result.status, result.reason) == ("failed", "client-2: ended by SIGKILL, before the training began")


def test_a_run_that_loses_all_its_workers_fails(make):
    result = execute_run(make("ps-async", sites=1, kill=Kill(site=0, round=1)), silent)
    assert result.status == "failed"
    assert "all workers were lost" in result.reason
