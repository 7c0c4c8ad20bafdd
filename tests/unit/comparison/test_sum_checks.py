"""Secure sums against plain means of the same updates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedcore.comparison.measure import sum_checks
from fedcore.comparison.measure.sum_checks import PlainRounds, SumVerdict, TensorGap, Which, check_sum, last_gap
from fedcore.flower.app import FlowerApp
from fedcore.flower.grid.training_means import MeanRecorder, TrainingMean
from fedcore.flower.memory_app import load_app
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.workers.executor import InlineExecutor
from fedcore.state import ModelState

SITES = 3
START = {"variance": np.ones(8, np.float32), "weight": np.linspace(-1, 1, 2000, dtype=np.float32)}
SIZE = {"variance": 1e6, "weight": 1e-3}
"""Of an update: as far apart as the statistics of raw columns and weights."""


def made_app(*, chance: bool = False, state: bool = False, strategy: Any = FedAvg) -> tuple[ClientApp, ServerApp]:
    """A client's update follows from its number and the round; by chance, or its state, from more."""
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        number, site = message.content.config_records["config"]["server-round"], context.node_config["partition-id"]
        rng = np.random.default_rng(int.from_bytes(os.urandom(4), "big") if chance else [number, site])
        if state:
            context.state["own"] = MetricRecord({"round": number})
        arrays = message.content.array_records["arrays"]
        new = {name: array.numpy() for name, array in arrays.items()}
        new = {name: (v + SIZE[name] * rng.standard_normal(v.shape)).astype(np.float32) for name, v in new.items()}
        content = RecordDict({
            "arrays": ArrayRecord({name: Array(value) for name, value in new.items()}),
            "metrics": MetricRecord({"num-examples": 10 + site}),
        })  # fmt: skip
        return Message(content=content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        start = ArrayRecord({name: Array(value) for name, value in START.items()})
        strategy(fraction_evaluate=0.0).start(grid=grid, initial_arrays=start, num_rounds=3)

    return client, server


@contextmanager
def run_of(aggregation: str = "secure", **about: Any) -> Iterator[tuple[FlowerApp, JobSettings, MeanRecorder]]:
    """A simulated run of the app, and what was recorded of it."""
    settings = JobSettings.from_mapping({"aggregation": aggregation, **about.pop("settings", {})})
    with load_app(made_app(**about), {}) as loaded:
        means = MeanRecorder(aggregation == "secure")
        Simulation(app=loaded.app, clients=SITES, run_config={}, settings=settings, means=means).run()
        yield loaded.app, settings, means


def checked(app: FlowerApp, settings: JobSettings, mean: TrainingMean, which: Which, **more: Any) -> SumVerdict | None:
    with InlineExecutor(app=app, clients=SITES) as executor:
        rounds = PlainRounds(app=app, run_config={}, settings=settings, executor=executor)
        return check_sum(mean, more.get("plain"), rounds, which=which)


def with_update(mean: TrainingMean, name: str, factor: float) -> TrainingMean:
    """The mean that a codec gives whose scale of one tensor is so many times too large."""
    wrong = mean.base[name] + factor * (mean.mean[name] - mean.base[name].astype(np.float64))
    return replace(mean, mean=ModelState.from_arrays({**mean.mean, name: wrong}))


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam])
def test_first_and_last_sums_of_a_run_are_the_plain_means(strategy: Any) -> None:
    with run_of(strategy=strategy) as (app, settings, means):
        assert means.first is not None
        assert means.last is not None
        assert (means.first.request.server_round, means.last.request.server_round) == (1, 3)
        for which, mean in (("first", means.first), ("last", means.last)):
            verdict = checked(app, settings, mean, which)
            assert verdict is not None
            assert verdict.gap is not None
            assert (verdict.status, verdict.rounds) == ("holds", 1)
            assert verdict.gap.difference > 0, "secure aggregation does round"


@pytest.mark.parametrize("name", list(START))
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("factor", [1000.0, 0.0])
def test_a_wrong_scale_is_told_with_its_tensor(name: str, which: Which, factor: float) -> None:
    with run_of() as (app, settings, means):
        mean = means.first if which == "first" else means.last
        assert mean is not None
        verdict = checked(app, settings, with_update(mean, name, factor), which)
    assert verdict is not None
    assert verdict.gap is not None
    assert (verdict.status, verdict.gap.tensor, verdict.own, verdict.rounds) == ("differs", name, 0.0, 2)
    assert verdict.gap.difference == pytest.approx(abs(factor - 1) * verdict.gap.change, rel=0.01)


def test_a_bound_that_a_coarse_encoding_allows_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the scales of both sides are too large, the codec's own bound grows with them."""
    monkeypatch.setattr(sum_checks, "error_bound", lambda *_, **__: dict.fromkeys(START, 1e9))
    with run_of() as (app, settings, means):
        assert means.first is not None
        verdict = checked(app, settings, with_update(means.first, "weight", 1.1), "first")
    assert verdict is not None
    assert verdict.status == "differs"


def test_a_plain_run_takes_the_place_of_the_extra_round() -> None:
    with run_of("plain") as (_, _, means):
        plain = means.first
        assert plain is not None
        assert means.last is None
    with run_of() as (app, settings, means):
        assert means.first is not None
        verdict = checked(app, settings, means.first, "first", plain=plain)
        assert verdict is not None
        assert (verdict.status, verdict.compared, verdict.rounds) == ("holds", True, 0)
        from_elsewhere = replace(plain, request=replace(plain.request, nodes=(1, 2)))
        verdict = checked(app, settings, means.first, "first", plain=from_elsewhere)
        assert verdict is not None
        assert (verdict.status, verdict.compared, verdict.rounds) == ("holds", False, 1)


@pytest.mark.parametrize("which", ["first", "last"])
def test_an_app_that_does_not_repeat_itself_is_no_fault(which: Which) -> None:
    with run_of(chance=True) as (app, settings, means):
        mean = means.first if which == "first" else means.last
        assert mean is not None
        verdict = checked(app, settings, mean, which)
        assert verdict is not None
        assert verdict.own is not None
        assert (verdict.status, verdict.rounds) == ("unknown", 2)
        assert verdict.own > 0
        broken = checked(app, settings, with_update(mean, "variance", 1000), which)
        assert broken is not None
        assert broken.gap is not None
        assert (broken.status, broken.gap.tensor) == ("differs", "variance")


def test_a_last_round_is_not_repeated_without_what_clients_keep() -> None:
    with run_of(state=True) as (app, settings, means):
        assert means.first is not None
        assert means.last is not None
        first = checked(app, settings, means.first, "first")
        assert first is not None
        assert first.status == "holds"
        assert checked(app, settings, means.last, "last") is None


def test_what_is_left_out_on_purpose_has_no_bound() -> None:
    with run_of(settings={"upload-fraction": 0.1}) as (app, settings, means):
        assert means.first is not None
        verdict = checked(app, settings, means.first, "first")
    assert verdict is not None
    assert verdict.status == "unknown"


def test_a_mean_is_read_as_it_was_written(tmp_path: Path) -> None:
    with run_of() as (_, _, means):
        means.save(tmp_path / "means")
    for name, mean in (("first", means.first), ("last", means.last)):
        assert mean is not None
        read = TrainingMean.load(tmp_path / "means" / f"{name}.safetensors")
        assert replace(read.request, model=None) == replace(mean.request, model=None)
        assert (read.examples, read.largest) == (mean.examples, mean.largest)
        for state, other in ((read.base, mean.base), (read.mean, mean.mean)):
            assert state.layout == other.layout
            assert all(np.array_equal(state[tensor], other[tensor]) for tensor in state)


def test_last_models_are_apart_for_their_change(tmp_path: Path) -> None:
    changes = {
        "secure": {"weight": 1.1, "bias": 2.0, "rounding": 2e-8},
        "plain": {"weight": 1.0, "bias": 2.5, "rounding": -1e-8},
        "start": {},
    }

    def gap_of(**others: float) -> TensorGap | None:
        for name, by in changes.items():
            values = by | (others if name == "secure" else {})
            arrays = {tensor: np.full(4, values.get(tensor, 0.0), np.float32) for tensor in changes["plain"]}
            ModelState.from_arrays(arrays).save(tmp_path / name)
        return last_gap(*(tmp_path / name for name in changes))

    lost = gap_of(rounding=3.0)  # what plain hardly moves, and secure does
    assert lost is not None
    assert lost.tensor == "rounding"
    gap = gap_of()
    assert gap is not None
    assert (gap.tensor, gap.difference, gap.change) == ("bias", 1.0, 5.0)
    assert last_gap(tmp_path / "none", tmp_path / "plain", tmp_path / "start") is None
