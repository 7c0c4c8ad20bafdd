"""Runs of the tiny app in memory, through the real state machines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedcore.federation import Policy
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.devices.choice import parse_devices
from fedcore.simulation.devices.network import Network
from fedcore.state import ModelState
from fedcore.system.assignments import override
from fedcore.wire.events import RunEvent
from support.events import told
from support.tiny import TINY


class Finished:
    """What a simulated run left: its final state and its events."""

    def __init__(self, state: ModelState | None, events: list[RunEvent]) -> None:
        self.state = state
        self.events = events

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [told(event) for event in self.events if event.kind == kind]


@dataclass(slots=True, kw_only=True)
class Absences(Simulation):
    """Clients that are not connected in some rounds. away: round -> which, of those that train once a round."""

    away: Mapping[int, Collection[int]] = field(default_factory=dict)
    done: list[RunEvent] = field(default_factory=list)

    def nodes(self) -> list[int]:
        number = 1 + sum(event.kind == "exchange-done" and event.trains for event in self.done)
        return [node for node in super(Absences, self).nodes() if node not in self.away.get(number, ())]


Simulate = Callable[..., Finished]


@pytest.fixture
def simulate() -> Simulate:
    def run(
        clients: int,
        *,
        app: Path = TINY,
        settings: Mapping[str, Any] | None = None,
        drop: float = 0.0,
        seed: int = 0,
        policy: Policy | None = None,
        away: Mapping[int, Collection[int]] | None = None,
        events: list[RunEvent] | None = None,
        devices: str = "",
        network: str = "none",
        **run_config: Any,
    ) -> Finished:
        """events: where to put them, so that they stay when the run fails."""
        flower = FlowerApp.load(app)
        events = [] if events is None else events
        simulation = Absences(
            app=flower,
            clients=clients,
            run_config=override(flower.run_config, {k.replace("_", "-"): v for k, v in run_config.items()}, "test"),
            settings=JobSettings.from_mapping({**flower.settings.to_mapping(), **(settings or {})}),
            drop=drop,
            seed=seed,
            policy=policy,
            devices=parse_devices(devices, Network.parse(network), clients=clients, seed=seed),
            emit=events.append,
            done=events,
            away=away or {},
        )
        return Finished(simulation.run().state, events)

    return run
