"""Runs of the tiny app in memory, through the real state machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedcore.config import JobSettings, override
from fedcore.events import RunEvent
from fedcore.federation import Policy
from fedcore.flower.app import FlowerApp
from fedcore.simulate import Simulation
from fedcore.state import ModelState
from support.events import told
from support.tiny import TINY


class Finished:
    """What a simulated run left: its final state and its events."""

    def __init__(self, state: ModelState | None, events: list[RunEvent]) -> None:
        self.state = state
        self.events = events

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [told(event) for event in self.events if event.kind == kind]


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
        **run_config: Any,
    ) -> Finished:
        flower = FlowerApp.load(app)
        events: list[RunEvent] = []
        simulation = Simulation(
            app=flower,
            clients=clients,
            run_config=override(flower.run_config, {k.replace("_", "-"): v for k, v in run_config.items()}, "test"),
            settings=JobSettings.from_mapping({**flower.settings.to_mapping(), **(settings or {})}),
            drop=drop,
            seed=seed,
            policy=policy,
            emit=events.append,
        )
        return Finished(simulation.run().state, events)

    return run
