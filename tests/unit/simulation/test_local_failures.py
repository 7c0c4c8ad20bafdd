"""Clients whose own work fails: they contribute nothing, as in a federation, and the run goes on without them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.raising import raises
from support.simulated import Simulate
from support.tiny import TINY, load_problem

from fedcore.errors import CohortTooSmall, RoundFailed, RunFailed
from fedcore.federation import Policy
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.batched_clients import OnFailure, raise_failure
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.workers.executor import ExecutorWrapper, InlineExecutor
from fedcore.state import ModelState
from fedcore.wire.events import RunEvent, Warned
from fedcore.wire.tasks import Task

CLIENTS = 6
problem = load_problem()
FAULTS = ("raise", "nan", "float64", "no-examples", "no-arrays", "exit")


def mean_without(client: int) -> np.ndarray:
    """The model after one step over the data of all but one of the clients."""
    parts = [problem.part(i - 1, CLIENTS) for i in range(1, CLIENTS + 1) if i != client]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    weight = problem.initial()["weight"]
    stepped: np.ndarray = weight - np.float32(0.5) * problem.gradient(weight, x, y)
    return stepped


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_whose_app_fails_contributes_nothing(simulate: Simulate, fault: str) -> None:
    done = simulate(CLIENTS, fault=fault, faulty_partition=2, num_server_rounds=1)
    trained = done.of("exchange-done")[0]
    assert (len(trained["survivors"]), trained["failures"]) == (CLIENTS, 1)
    np.testing.assert_allclose(done.state["weight"], mean_without(3), rtol=0, atol=2e-6)
    assert [event["line"][:9] for event in done.of("warning") if "client-" in event["line"]] == ["client-3 "]


def test_a_client_leaves_if_its_owner_lets_the_server_learn_of_failures(simulate: Simulate) -> None:
    policy = Policy.own(CLIENTS)
    done = simulate(CLIENTS, fault="raise", faulty_partition=2, num_server_rounds=1, policy=policy)
    trained = done.of("exchange-done")[0]
    assert trained["survivors"] == [f"client-{i}" for i in range(1, CLIENTS + 1) if i != 3]
    (dropped,) = done.of("dropped")
    assert "patient 17" in dropped["reason"]
    np.testing.assert_allclose(done.state["weight"], mean_without(3), rtol=0, atol=2e-6)


def test_more_failures_than_a_sum_allows_end_the_run_by_name(simulate: Simulate) -> None:
    with pytest.raises(ValueError, match="patient 17"):
        simulate(3, fault="raise", faulty_partition=1)
    with pytest.raises(ValueError, match="patient 17") as raised:
        simulate(3, fault="raise", faulty_partition=1, policy=Policy.own(3))
    assert isinstance(raised.value.__cause__, CohortTooSmall)


CATCHING = """
from tiny_app.server_app import app as ours
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    try:
        ours(grid, context)
    except Exception as error:
        print("caught", error)
"""


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
def test_an_app_that_catches_the_error_has_failed_all_the_same(simulate: Simulate, tmp_path: Path, aggregation: str):
    folder = catching_app(tmp_path)
    quorum = {"quorum": 3, "max-attempts": 1} if aggregation == "plain" else {}
    with raises(RunFailed):
        simulate(3, app=folder, settings={"aggregation": aggregation, **quorum}, fault="raise", faulty_partition=1)


def catching_app(folder: Path) -> Path:
    """The tiny app, whose ServerApp goes on after any error."""
    app = folder / "catching"
    app.mkdir()
    shutil.copytree(TINY / "tiny_app", app / "tiny_app")
    (app / "catching_app").mkdir()
    (app / "catching_app" / "__init__.py").touch()
    (app / "catching_app" / "server.py").write_text(CATCHING)
    text = (TINY / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(text.replace("tiny_app.server_app:app", "catching_app.server:app"))
    return app


@dataclass(slots=True)
class Slow(ExecutorWrapper):
    """Clients that take as long as `seconds` says."""

    seconds: Mapping[int, float]

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        for client, result in self.executor.run(task, model, clients, on_failure):
            yield client, replace(result, seconds=self.seconds.get(client, 1.0))


def slow(clients: int, seconds: Mapping[int, float], **settings: Any) -> list[RunEvent]:
    app, events = FlowerApp.load(TINY), list[RunEvent]()
    simulation = Simulation(
        app=app,
        clients=clients,
        run_config={**app.run_config, "num-server-rounds": 1},
        settings=JobSettings.from_mapping({**app.settings.to_mapping(), **settings}),
        executor=Slow(InlineExecutor(app=app, clients=clients), seconds),
        emit=events.append,
    )
    simulation.run()
    return events


def test_local_work_that_takes_longer_than_allowed_counts_as_failed() -> None:
    events = slow(CLIENTS, {3: 61.0, 4: 59.0}, **{"train-seconds": 60.0})
    done = [event for event in events if event.kind == "exchange-done"]
    assert [event.failures for event in done] == [1, 1]  # type: ignore[attr-defined]
    assert any("client-3" in event.line for event in events if isinstance(event, Warned))
    with raises(RoundFailed, check="too-late"):
        slow(3, {3: 61.0}, **{"train-seconds": 60.0})
