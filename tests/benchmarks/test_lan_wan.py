"""The arithmetic of the WAN study, on curves made by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny import TINY

from benchmarks.lan_wan import Study, retime
from fedcore.comparison.measure.clock import allreduce_seconds, averaging_seconds, local_seconds
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.results import CurvePoint, RunResult
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.schedule import Schedule
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Cost, Network

COST = Cost(step=1.0, example=0.0)
NETWORK = Network(name="", bandwidth=8.0, latency=0.5, server=16.0)
SCHEDULE = Schedule(counts=(4, 4), batch_size=2, epochs=1)


def curve(*accuracies: float, up: float = 100.0, seconds: float = 1.0) -> tuple[CurvePoint, ...]:
    """A point a round; 7 bytes came before the first one."""
    return tuple(
        CurvePoint(
            round=number,
            samples=8 * number,
            seconds=0.0,
            simulated_seconds=seconds * number,
            bytes_up=7 + up * number if number else 0.0,
            bytes_down=7 + up * number if number else 0.0,
            metrics={"accuracy": accuracy},
        )
        for number, accuracy in enumerate(accuracies)
    )


def retimed(word: str) -> list[float | None]:
    (mode,) = parse_modes(word)
    config: dict[str, Any] = {"batch-size": 2, "local-epochs": 1}
    run = PlannedRun(
        app=FlowerApp.load(TINY), chosen=mode, config=config, settings={}, sites=2, seed=1, folder=Path("nowhere")
    )
    result = RunResult(mode=word, kind=mode.kind, seed=1, aggregation="plain", curve=curve(0.1, 0.5, 0.9))
    return [point.simulated_seconds for point in retime(run, result, SCHEDULE, COST, NETWORK)][1:]


def test_a_run_is_retimed_from_the_bytes_of_a_round() -> None:
    assert retimed("allreduce") == allreduce_seconds(SCHEDULE, 2, 2, COST, NETWORK, bytes_per_step=100 / 4)
    averages = averaging_seconds(SCHEDULE, 4, 2, COST, NETWORK, h=2, bytes_per_average=100)
    assert retimed("local-sgd[h=2]") == averages
    assert retimed("local") == local_seconds(SCHEDULE, 2, COST, NETWORK)
    assert retimed("centralized") == [4.0, 8.0]
    # Two steps, four round trips of a second, and the bytes of each round.
    assert retimed("federated-plain") == pytest.approx([2 + 4 + 214, 2 * (2 + 4) + 214 + 200])


def test_the_first_at_the_target_wins() -> None:
    slow, fast = curve(0.1, 0.95, 0.96, seconds=10.0), curve(0.1, 0.5, 0.95, seconds=2.0)
    pooled = curve(0.1, 0.99)
    study = Study(
        app="tiny",
        rounds=2,
        cost=COST,
        curves={
            "lan": {"centralized": pooled, "allreduce": fast, "federated": slow},
            "wan": {"centralized": pooled, "allreduce": tuple(replace(p, simulated_seconds=99.0) for p in fast),
                    "federated": slow},
        },
        again={},
    )  # fmt: skip
    assert study.targets == (0.864, 0.940)
    assert [study.reached(network, "allreduce", 0.94) for network in ("lan", "wan")] == [4.0, 99.0]
    assert [study.winner(network, 0.94) for network in ("lan", "wan")] == ["allreduce", "federated"]
    assert study.reached("lan", "federated", 0.99) is None
