"""The baselines, each through its real processes: what has to be equal is equal, and nothing hangs on a death."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedcore.comparison.execution import execute_run
from fedcore.comparison.measure.clock import allreduce_seconds
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.modes.baseline import worker_to_blame
from fedcore.comparison.results import RunResult
from fedcore.comparison.run import MODEL_FILE, Kill, PlannedRun
from fedcore.comparison.workers.problem import Problem
from fedcore.comparison.workers.processes import Ended, ReportSink, Workers
from fedcore.flower.app import FlowerApp
from fedcore.monitoring.run_record import RunRecord
from fedcore.simulation.devices.network import Cost, Network
from fedcore.state import ModelState
from fedcore.wire.events import ignore

# The fork server may need long to import torch.

ROOT = Path(__file__).parents[3]
SITES = 2
ROUNDS = 2
# Momentum 0: averages of models are averages of gradients only where the history of a step is the same everywhere.
CONFIG = {"num-server-rounds": ROUNDS, "local-epochs": 1, "batch-size": 128, "momentum": 0.0, "lr": 0.5}
ALIKE = "global-batch=128"
COST = Cost(step=0.002, example=1e-5)
NETWORK = Network.parse("wan")

# The same sums in another order: about 1e-7 was seen after 24 steps, for values that moved by up to 0.4.
ROUNDING = 2e-6
# Gradients of eleven bits: about 1e-3 was seen.
HALF = 4e-3

Run = Callable[..., tuple[RunResult, Path]]


def mode_run(mode: str, folder: Path, kill: Kill | None = None, app: str = "examples/digits", **config) -> PlannedRun:
    found = FlowerApp.load(ROOT / app)
    (parsed,) = parse_modes(mode)
    merged = {**found.run_config, **(CONFIG if "digits" in app else {}), **parsed.config, **config}
    return PlannedRun(
        app=found, chosen=parsed, config=merged, settings={}, sites=SITES, seed=42,
        folder=folder, network=NETWORK, cost=COST, kill=kill,
    )  # fmt: skip


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each mode is carried out once for all tests."""

    @cache
    def run(mode: str) -> tuple[RunResult, Path]:
        folder = tmp_path_factory.mktemp("run")
        record = RunRecord()
        result = execute_run(mode_run(mode, folder), lambda event: record.add(event, 0.0))
        assert (result.status, result.reason) == ("finished", "")
        assert record.status == "finished"
        assert record.samples() == result.samples
        return result, folder

    return run


def model(folder: Path) -> ModelState:
    return ModelState.open(folder / MODEL_FILE)


def distance(first: Path, second: Path) -> float:
    """The largest difference of two models' values."""
    one, other = model(first), model(second)
    assert list(one) == list(other)
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


CENTRALIZED = f"centralized[{ALIKE}]"
ALLREDUCE = f"allreduce[{ALIKE}]"
EVERY_STEP = f"local-sgd[h=1,{ALIKE}]"
AVERAGING = "local-sgd[h=3]"
PLAIN_OUTER = "diloco[h=3,outer-lr=1,outer-momentum=0]"
DILOCO = "diloco[h=3]"


@pytest.mark.parametrize(
    ("mode", "other", "within"),
    [
        (ALLREDUCE, CENTRALIZED, ROUNDING),
        (f"centralized[ranks=2,{ALIKE}]", CENTRALIZED, ROUNDING),
        (f"allreduce[{ALIKE},hook=fp16]", ALLREDUCE, HALF),
        (EVERY_STEP, ALLREDUCE, ROUNDING),
        (PLAIN_OUTER, AVERAGING, ROUNDING),
    ],
)
def test_modes_that_mean_the_same_end_with_the_same_model(carried_out: Run, mode: str, other: str, within: float):
    (one, here), (two, there) = carried_out(mode), carried_out(other)
    assert distance(here, there) <= within
    assert one.initial_sha256 == two.initial_sha256
    assert one.samples == two.samples
    if within == HALF:
        assert one.bytes_down["client-1"] < 0.6 * two.bytes_down["client-1"]
    initial = ModelState.open(here / "initial.safetensors")
    assert max(float(np.abs(initial[name] - model(here)[name]).max()) for name in initial) > 25 * within


def test_momentum_of_its_own_makes_a_difference_that_stays_small(carried_out: Run):
    """Each rank keeps the momentum of its own gradients, and its part of a batch varies by an example.

    With parts that never vary the mean of the models would have the mean of the momenta, and nothing would differ.
    """
    momentum = f"{ALIKE},momentum=0.9,lr=0.05"
    one, two = (carried_out(f"{kind},{momentum}]")[1] for kind in ("local-sgd[h=1", "allreduce[hook=none"))
    assert 5 * ROUNDING < distance(one, two) < 5e-3


def test_the_outer_optimizer_makes_a_difference(carried_out: Run):
    assert distance(carried_out(DILOCO)[1], carried_out(AVERAGING)[1]) > 50 * ROUNDING


def test_every_mode_sees_as_many_samples_and_begins_alike(carried_out: Run):
    results = [carried_out(mode)[0] for mode in (CENTRALIZED, ALLREDUCE, EVERY_STEP, AVERAGING, DILOCO, "local")]
    problem = problem_of(carried_out("local")[1])
    for result in results:
        assert [point.samples for point in result.curve] == [k * problem.schedule.samples for k in range(ROUNDS + 1)]
        assert result.initial_sha256 == results[0].initial_sha256
        assert result.curve[0] == results[0].curve[0]
        assert result.metrics["loss"] < 0.8 * result.curve[0].metrics["loss"]
        assert result.parameters == results[0].parameters
    assert len({result.model_sha256 for result in results}) == len(results)


def test_each_site_alone_has_a_model_and_a_result_of_its_own(carried_out: Run):
    result, folder = carried_out("local")
    assert result.model_sha256 == ""
    assert distance(folder / "client-1", folder / "client-2") > 0
    assert [site.site for site in result.sites] == ["client-1", "client-2"]
    for name in ("loss", "accuracy"):
        assert result.metrics[name] == pytest.approx(np.mean([site.everywhere[name] for site in result.sites]))
    first, second = (site.metrics["loss"] for site in result.sites)
    assert result.metrics["loss"] > max(first, second), "everyone's test data are harder than a site's own"
    assert set(result.bytes_up.values()) == {0}


def test_bytes_are_those_of_the_ring_and_the_clock_follows_them(carried_out: Run):
    result, folder = carried_out(ALLREDUCE)
    # A ring sends 2 (N - 1) / N of the gradients; rank 0 also sent the first model.
    gradients = 2 * (SITES - 1) / SITES * 4 * result.parameters
    sent = result.bytes_up["client-2"] / result.steps["client-2"]
    received = result.bytes_down["client-1"] / result.steps["client-1"]
    assert gradients <= received <= 1.1 * gradients
    assert sent >= gradients, "on a busy machine TCP sends some of it again"
    assert result.bytes_down["client-2"] > result.bytes_down["client-1"] + 2 * result.parameters
    schedule = problem_of(folder).schedule
    expected = allreduce_seconds(schedule, 128, ROUNDS, COST, NETWORK, bytes_per_step=sent)
    assert [point.simulated_seconds for point in result.curve[1:]] == pytest.approx(expected, rel=0.2)


def test_only_the_last_model_stays(carried_out: Run):
    for mode in (ALLREDUCE, "local"):
        _, folder = carried_out(mode)
        models = {path.name for path in folder.rglob("*.safetensors")}
        assert models == {"initial.safetensors", MODEL_FILE}


@pytest.mark.parametrize("mode", ["centralized", "allreduce", "local-sgd", "local"])
def test_a_killed_worker_is_told_of_and_nothing_hangs(tmp_path: Path, mode: str):
    result = execute_run(mode_run(mode, tmp_path, Kill(site=1, round=1)), ignore)
    (loss,) = result.losses
    assert loss.round == 1
    assert loss.seconds < 60
    if mode == "local":
        assert (result.status, loss.worker) == ("finished", "client-2")
        assert [site.site for site in result.sites] == ["client-1"]
        assert [point.round for point in result.curve] == [0, 1, 2]
        return
    assert result.status == "failed"
    assert loss.worker == ("pooled" if mode == "centralized" else "client-2")
    assert f"{loss.worker} was lost after round 1 (ended by SIGKILL)" in result.reason
    # What was whole stays known.
    assert [point.round for point in result.curve] == [0, 1]
    assert result.metrics["loss"] < result.curve[0].metrics["loss"]
    assert result.model_sha256 == ""
    assert not list(tmp_path.glob("round-*"))


def lose_peer(report: ReportSink) -> None:
    raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:1] Connection closed by peer")


def end_late(report: ReportSink) -> None:
    """As one that was the first to end and is the last to be seen."""
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGKILL)


def test_who_was_killed_is_found_when_another_is_seen_to_end_first(tmp_path: Path):
    with Workers(tmp_path) as workers:
        workers.start("left", lose_peer)
        workers.start("killed", end_late)
        first = next(event for event in workers.events(silence=60.0) if isinstance(event.report, Ended))
        assert first.name == "left"
        assert worker_to_blame(workers, *first)[0] == "killed"


def test_what_the_app_raises_is_the_reason(tmp_path: Path):
    result = execute_run(mode_run("allreduce", tmp_path, partition="nonsense"), ignore)
    assert result.status == "failed"
    assert "nonsense" in result.reason
    assert result.losses == ()


def test_any_app_is_centralized_by_its_own_server_app(tmp_path: Path):
    run = mode_run("centralized", tmp_path, app="tests/apps/tiny")
    result = execute_run(run, ignore)
    assert (result.status, result.reason) == ("finished", "")
    assert result.samples is None, "the app's own loop takes them, and what it reports are weights"
    assert result.reported_examples is not None
    assert set(result.metrics) == {"eval_loss"}
    assert result.model_sha256 != result.initial_sha256 != ""


def problem_of(folder: Path) -> Problem:
    run = mode_run("local", folder)
    return Problem.of(run)
