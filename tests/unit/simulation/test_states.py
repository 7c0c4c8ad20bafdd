"""What clients keep between tasks follows them: out of memory, and from one process to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedcore.flower.app import FlowerApp
from fedcore.simulation.workers.states import Runners
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

COUNTING = Path(__file__).parents[2] / "apps" / "counting"
MODEL = ModelState.from_arrays({"value": np.ones(3, np.float32)})


def runners(folder: Path, **options: Any) -> Runners:
    return Runners(app=FlowerApp.load(COUNTING), clients=9, folder=folder, **options)


@pytest.fixture
def task() -> Task:
    return Task(
        run="simulation",
        exchange=1,
        attempt=1,
        server_round=1,
        message_type="train",
        aggregation="secure",
        app_sha256="0" * 64,
        run_config={},
        arrays_key="arrays",
        configs={},
        weight_key="num-examples",
        model=None,
        cohort=[1],
        quorum=1,
        protection=None,
        encoding=None,
        roster=1,
        seconds=60.0,
    )


def rounds(held: Runners, client: int, task: Task) -> Any:
    try:
        return held.of(client).run(task, MODEL).metrics["rounds"]
    finally:
        held.done(client)


def test_those_that_make_room_come_back_as_they_were(tmp_path: Path, task: Task):
    held = runners(tmp_path, shared=False, most=2)
    for turn in (1, 2, 3):
        assert [rounds(held, client, task) for client in (1, 2, 3, 4, 5)] == [turn] * 5
    assert held.warm == 2


def test_two_processes_that_take_turns_go_on_where_the_other_stopped(tmp_path: Path, task: Task):
    one, other = runners(tmp_path, shared=True), runners(tmp_path, shared=True)
    turns = [one, other, other, one, one, other]
    assert [rounds(held, 3, task) for held in turns] == [1, 2, 3, 4, 5, 6]
    assert rounds(one, 4, task) == 1


def test_a_runner_whose_state_nobody_touched_stays_warm(tmp_path: Path, task: Task):
    held = runners(tmp_path, shared=True)
    rounds(held, 3, task)
    first = held.of(3)
    rounds(held, 3, task)
    assert held.of(3) is first
    rounds(runners(tmp_path, shared=True), 3, task)
    assert held.of(3) is not first


def test_arrays_survive_bit_for_bit(tmp_path: Path, task: Task):
    one, other = (runners(tmp_path, shared=True) for _ in range(2))
    one.of(1).run(task, MODEL)
    kept = np.array([np.nan, -0.0, 1e-42], np.float32)
    context: Any = one.of(1).context
    context.state["bits"] = ArrayRecord({"value": Array(kept)})
    one.done(1)
    found: Any = other.of(1)
    found.run(task, MODEL)
    assert found.context.state["bits"]["value"].numpy().tobytes() == kept.tobytes()
