"""The timeout of a strategy: a client whose local work takes longer has no reply, as in Flower and in a federation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from support.tiny import TINY

from fedcore.errors import RoundFailed
from fedcore.flower.app import FlowerApp
from fedcore.flower.clientside import Answer
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.workers.executor import ExecutorWrapper, InlineExecutor, PlainTask
from fedcore.wire.events import ClientDropped, ExchangeDone, RunEvent

CLIENTS = 4
FLOWERS_DEFAULT = 3600.0
"""Seconds that `Strategy.start` waits."""


@dataclass(slots=True)
class Timed(ExecutorWrapper):
    """Clients that take as long as `seconds` says."""

    seconds: Mapping[int, float]

    def answer(self, tasks: Mapping[int, PlainTask]) -> Iterator[tuple[int, Answer | Exception]]:
        for client, answer in self.executor.answer(tasks):
            assert isinstance(answer, Answer)
            yield client, replace(answer, seconds=self.seconds.get(client, 1.0))


def events_of(seconds: Mapping[int, float], **settings: object) -> list[RunEvent]:
    app = FlowerApp.load(TINY)
    events: list[RunEvent] = []
    simulation = Simulation(
        app=app,
        clients=CLIENTS,
        run_config={**app.run_config, "num-server-rounds": 1},
        settings=JobSettings.from_mapping({**app.settings.to_mapping(), "aggregation": "plain", **settings}),
        executor=Timed(InlineExecutor(app=app, clients=CLIENTS), seconds),
        emit=events.append,
    )
    simulation.run()
    return events


def test_a_client_that_takes_longer_has_no_reply() -> None:
    events = events_of({3: FLOWERS_DEFAULT + 1, 4: FLOWERS_DEFAULT - 1})
    sums = [event.survivors for event in events if isinstance(event, ExchangeDone)]
    assert sums == [["client-1", "client-2", "client-4"]] * 2
    assert {event.client for event in events if isinstance(event, ClientDropped)} == {"client-3"}


def test_a_client_that_takes_longer_than_the_run_allows_has_an_error() -> None:
    events = events_of({3: 61.0, 4: 59.0}, **{"train-seconds": 60.0})
    sums = [event.survivors for event in events if isinstance(event, ExchangeDone)]
    assert sums == [["client-1", "client-2", "client-4"]] * 2
    assert {event.client for event in events if isinstance(event, ClientDropped)} == {"client-3"}


def test_a_quorum_counts_who_replied_in_time() -> None:
    with pytest.raises(RoundFailed):
        events_of({3: FLOWERS_DEFAULT + 1}, **{"quorum": 4, "max-attempts": 1})
