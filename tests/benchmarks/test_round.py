"""The arithmetic of the round benchmark, on a record made by hand, and its app."""

import numpy as np
import pytest
from support.events import event

from benchmarks.common import APPS
from benchmarks.processors import AGENTS, SERVER, between
from benchmarks.round import MIB, PLAIN, SECURE, Measured, report
from benchmarks.round_floor import Floor, measure_floor
from fedcore.comparison.local_federation import LocalFederation
from fedcore.flower.app import FlowerApp
from fedcore.monitoring.run_record import RunRecord
from fedcore.simulation import Simulation

PROCESSORS = {"server": 0.5, "ServerApp": 0.25, "agents": 1.0, "ranks": 0.25}


def record_of(ends, seconds, up):
    """One training exchange for each end; its upload in bytes from `up`."""
    record = RunRecord()
    for number, (end, sent) in enumerate(zip(ends, up, strict=True), start=1):
        data = {
            "server_round": number,
            "message_type": "train",
            "examples": 2,
            "metrics": {},
            "survivors": ["a", "b"],
            "seconds": seconds,
            "stage_seconds": {"input": 0.25},
            "bytes_up": {"a": sent, "b": sent},
            "bytes_down": {"a": 7, "b": 9},
        }
        record.add(event("exchange-done", **data), end)
    return record


def measured(kind, step, up, parameters=10**6):
    one = Measured(parameters=parameters, aggregation=kind)
    ends = [10 + step * number for number in range(4)]
    one.add(record_of(ends, 0.5, up), peak=150 * 2**20, app_peak=50, processors=PROCESSORS)
    return one


def test_the_first_round_is_left_out():
    one = measured(SECURE, 1.0, [9_000_000, 2_000_000, 2_000_000, 2_000_000])
    assert one.seconds == [1.0, 1.0, 1.0]
    assert one.upload() == 2_000_000
    assert one.download() == 8
    assert one.stages() == {
        "input": 0.25,
        "changing stages": pytest.approx(0.25),
        "between exchanges": pytest.approx(0.5),
    }


def test_runs_of_one_kind_add_up_and_the_highest_peak_counts():
    one = measured(SECURE, 1.0, [1, 1, 1, 1])
    one.add(record_of([100, 103], 0.5, [1, 1]), peak=5, app_peak=70, processors=PROCESSORS)
    assert one.seconds == [1.0, 1.0, 1.0, 3]
    assert (one.peak, one.app_peak) == (150 * 2**20, 70)


def figures_of(parameters, upload):
    floor = Floor(parameters=parameters, seconds=[0.5, 9, 0.5], server_cpu=[0.25] * 3, clients_cpu=[0.75] * 3)
    both = {
        (parameters, SECURE): measured(SECURE, 1.5, [1, upload, upload, upload], parameters),
        (parameters, PLAIN): measured(PLAIN, 1.2, [4 * parameters] * 4, parameters),
    }
    made = report(both, idle=int(100 * MIB), sizes=(parameters,), clients=2, floors=[floor])
    return {figure.name: figure for figure in made.figures}


def test_figures_are_ratios():
    figures = figures_of(10**7, 20_200_000)
    assert figures["secure_over_plain_seconds_1e7"].value == pytest.approx(1.25)
    assert figures["round_over_floor_1e7"].value == pytest.approx(3)
    assert figures["round_over_floor_processors_1e7"].value == pytest.approx(2)
    assert figures["upload_over_float32"].value == pytest.approx(0.505)
    assert figures["server_peak_over_model"].value == pytest.approx(50 * MIB / 4e7)
    assert [name for name, figure in figures.items() if not figure.holds] == [
        "secure_over_plain_seconds_1e7",
        "round_over_floor_1e7",
    ]


def test_a_small_model_says_nothing_about_memory():
    assert "server_peak_over_model" not in figures_of(10**6, 2_020_000)


def test_the_app_trains_nothing_but_moves_the_model():
    app = FlowerApp.load(APPS / "noop")
    config = {**app.run_config, "parameters": 1003, "tensors": 3, "num-server-rounds": 2}
    events = []
    simulation = Simulation(
        app=app,
        clients=2,
        run_config=config,
        settings=app.settings,
        emit=events.append,
    )
    state = simulation.run().state
    start = np.random.default_rng(0).standard_normal(1003, dtype=np.float32)
    assert sum(array.size for array in state.values()) == 1003
    # Steps of 0.001 and 0.002 average to 0.0015 a round.
    assert np.concatenate(list(state.values())) - start == pytest.approx(0.003, abs=2e-6)
    done = [item.message_type for item in events if item.kind == "exchange-done"]
    assert done == ["train", "train"]


def test_the_floor_adds_up_what_its_clients_sent(tmp_path):
    made = LocalFederation.create(tmp_path / "federation", clients=2, allow_plain=False)
    floor = measure_floor(made.folder / "server", 20_000, clients=2, turns=1)  # raises where the sum is wrong
    assert len(floor.seconds) == len(floor.server_cpu) == len(floor.clients_cpu) == 1
    assert floor.seconds[0] > 0


def test_only_processes_that_lived_through_all_rounds_count():
    before = {(SERVER, 1): 5.0, (AGENTS, 2): 1.0, (AGENTS, 3): 2.0, ("ServerApp", 9): 7.0}
    after = {(SERVER, 1): 9.0, (AGENTS, 2): 3.0, (AGENTS, 3): 2.0, ("ServerApp", 10): 1.0}
    assert between(before, after, 2) == {"server": 2.0, "agents": 1.0, "ServerApp": 0.0, "ranks": 0.0}
