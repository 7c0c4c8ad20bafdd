"""Clients in tasks of Ray: the same bits as in one process, and states that go along."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.tiny import TINY

from fedcore.errors import ConfigurationError, WorkerDied
from fedcore.simulation.workers.executor import ClientExecutor, InlineExecutor
from fedcore.simulation.workers.ray_executor import RayExecutor
from fedcore.wire.events import ExchangeDone, RunEvent, Warned
from tests.processes.simulation.test_pool import CLIENTS, COUNTING, of, same_bits, simulated

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: fedcore[simulation]"),
    # Ray leaves the sockets of its own processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientExecutor]:
    """A Ray whose first start comes to nothing, as on a busy machine."""
    module = importlib.import_module("ray")
    starts = itertools.chain([too_slow], itertools.repeat(module.init))

    def init(**options: Any) -> None:
        next(starts)(**options)

    monkeypatch.setattr(module, "init", init)
    with of(RayExecutor, COUNTING, workers=2) as executor:
        monkeypatch.undo()
        yield executor


def too_slow(**_: object) -> None:
    raise Exception("The current node timed out during startup.")


def test_a_ray_that_never_starts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("ray"), "init", too_slow)
    with pytest.raises(WorkerDied):
        of(RayExecutor, COUNTING)


def test_runs_on_ray(ray: ClientExecutor, monkeypatch: pytest.MonkeyPatch):
    """One Ray for all: it takes long to start."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with of(InlineExecutor, COUNTING) as executor:
        expected = simulated(executor, COUNTING, "plain")
    assert same_bits(simulated(ray, COUNTING, "plain"), expected)
    with of(RayExecutor, COUNTING) as again:  # joins the Ray that is there, and leaves it running
        events: list[RunEvent] = []
        found = simulated(again, COUNTING, "secure", events)
    np.testing.assert_allclose(found["value"], expected["value"], rtol=1e-4)
    done = [event for event in events if event.kind == "exchange-done"]
    assert [len(event.survivors) for event in done] == [CLIENTS] * 4
    with of(RayExecutor, TINY) as failing:
        events = []
        simulated(failing, TINY, "secure", events, faulty_partition=3, fault="raise", num_server_rounds=1)
    assert [event.failures for event in events if isinstance(event, ExchangeDone)] == [1, 0]
    assert any(re.search(r"client 4 .*ValueError", event.line) for event in events if isinstance(event, Warned))


def test_workers_are_refused_for_a_ray_that_is_joined(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="--workers"):
        of(RayExecutor, COUNTING, workers=3)
