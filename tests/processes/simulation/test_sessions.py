"""Secure sessions in processes of their own: the same rounds as in one process, and how they end."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import psutil
import pytest
from support.stories import ROSTER, Setting, identity
from support.tiny import TINY

from fedcore.errors import ProtocolViolation, RunFailed, WorkerDied
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.secagg import verifies
from fedcore.simulation import Simulation
from fedcore.simulation.sessions.processes import ProcessSessions, SessionProcesses
from fedcore.simulation.sessions.sessions import InlineSessions, Members
from fedcore.simulation.workers.executor import InlineExecutor
from fedcore.state import ModelState
from fedcore.system.assignments import override
from fedcore.wire.events import RunEvent

pytestmark = pytest.mark.timeout(600)  # processes may need long to import NumPy

CLIENTS = 12


class Spread(InlineExecutor):
    """Clients' apps run in this process, their sessions in two others."""

    @property
    def processes(self) -> int:
        return 2


class SameDrops:
    """In a sum of all clients three are gone, before a step each."""

    def drops_at_step(self, cohort: Sequence[int]) -> dict[int, str]:
        return {5: "share", 7: "input", 9: "unmask"} if len(cohort) == CLIENTS else {}

    def drops(self, cohort: Sequence[int]) -> Collection[int]:
        return ()


def run(executor: type[InlineExecutor], events: list[RunEvent], **settings: Any) -> ModelState:
    app = FlowerApp.load(TINY)
    random.seed(7)  # Flower draws who is asked
    with executor(app=app, clients=CLIENTS) as at_work:
        simulation = Simulation(
            app=app,
            clients=CLIENTS,
            run_config=override(app.run_config, {"num-server-rounds": 2}, "test"),
            settings=JobSettings.from_mapping({**app.settings.to_mapping(), **settings}),
            executor=at_work,
            dropouts=SameDrops(),
            emit=events.append,
        )
        state = simulation.run().state
    assert state is not None
    return state


def told(events: list[RunEvent]) -> list[tuple[Any, ...]]:
    """Who dropped out where, and of whom the sums are."""
    found = []
    for event in events:
        if event.kind == "dropped":
            found.append((event.client, event.stage))
        elif event.kind == "exchange-done":
            found.append((event.exchange, tuple(event.survivors), event.examples))
    return found


@pytest.mark.parametrize("settings", [{}, {"groups": 2, "max-corrupt": 0.0}], ids=["one", "groups"])
def test_the_rounds_are_those_of_one_process(settings: dict[str, Any]):
    expected_events: list[RunEvent] = []
    events: list[RunEvent] = []
    expected = run(InlineExecutor, expected_events, **settings)
    found = run(Spread, events, **settings)
    assert told(events) == told(expected_events)
    assert len(told(events)) >= 4  # two rounds, each a training and an evaluation
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4)


def test_a_process_that_dies_ends_the_run():
    before = set(psutil.Process().children())

    class Killing(list[RunEvent]):
        def append(self, event: RunEvent) -> None:
            if event.kind == "exchange-done":
                victim = next(one for one in psutil.Process().children() if one not in before)
                os.kill(victim.pid, signal.SIGKILL)
            super().append(event)

    with pytest.raises((WorkerDied, RunFailed), match="SIGKILL"):
        run(Spread, Killing())
    assert set(psutil.Process().children()) <= before


def members(min_cohort: int) -> Members:
    setting = Setting(n=4, quorum=3, degree=3, threshold=3, corrupt=0)
    return Members(
        parameters=setting.parameters(1),
        identities={i: identity(i) for i in setting.ids},
        roster=ROSTER,
        min_cohort=min_cohort,
        min_threshold=2,
    )


def test_what_a_session_refuses_comes_as_it_is_and_the_next_round_works():
    with pytest.raises(ProtocolViolation) as here:
        InlineSessions(members(min_cohort=9), verifies)
    with SessionProcesses(2) as processes:
        with pytest.raises(ProtocolViolation) as there:
            ProcessSessions(members(min_cohort=9), processes)
        assert (str(there.value), vars(there.value).keys()) == (
            str(here.value),
            vars(here.value).keys() | {"__notes__"},
        )
        assert there.value.check == here.value.check
        assert "shard.py" in there.value.__notes__[0]
        found = ProcessSessions(members(min_cohort=2), processes).advertise([1, 3, 4])
        assert sorted(one.client_id for one in found) == [1, 3, 4]
