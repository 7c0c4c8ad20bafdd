"""Exchanges on the virtual clock: who is asked, who is waited for, who is too late, and how late it is then."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.simulated import Finished, Simulate
from support.tiny import step_of

from fedcore.errors import RoundFailed
from fedcore.run.settings import JobSettings
from fedcore.simulation.devices.choice import parse_devices
from fedcore.simulation.devices.network import Network
from fedcore.simulation.devices.virtual_scheduler import UpdateStage, VirtualScheduler
from fedcore.wire.events import NOT_NEEDED, RunEvent

NET = "bandwidth=1Gbit,latency=0s,example=1s"


def trace(folder: Path, *rows: str) -> str:
    file = folder / "devices.csv"
    file.write_text("\n".join(("client,time,from,to", *rows)) + "\n")
    return str(file)


def names(event: object) -> list[str]:
    return sorted(event["survivors"])  # type: ignore[index]


def weight(run: Finished) -> np.ndarray:
    assert run.state is not None
    return run.state["weight"]


class TestSecure:
    def test_a_round_takes_as_long_as_its_slowest_client(self, simulate: Simulate, tmp_path: Path) -> None:
        devices = trace(tmp_path, "2,3,,", "any,1,,")
        run = simulate(4, devices=devices, network=NET, num_server_rounds=2)
        plain = simulate(4, num_server_rounds=2)
        trained = [one for one in run.of("exchange-done") if one["message_type"] == "train"]
        examples = trained[0]["examples"] / 4
        assert [one["virtual_seconds"] for one in trained] == pytest.approx([3 * examples] * 2, rel=0.3)
        assert all(one["virtual_seconds"] == 0 for one in run.of("exchange-done") if one["message_type"] == "evaluate")
        assert all(one["virtual_seconds"] is None for one in plain.of("exchange-done"))
        assert np.allclose(weight(run), weight(plain), atol=1e-4), "the clock changes no sum"

    def test_who_exceeds_the_time_for_its_work_is_not_in_the_sum(self, simulate: Simulate, tmp_path: Path) -> None:
        devices = trace(tmp_path, "2,1000,,", "any,1,,")
        settings = {"train-seconds": 100.0}
        run = simulate(4, devices=devices, network=NET, settings=settings)
        (trained,) = (one for one in run.of("exchange-done") if one["message_type"] == "train")
        assert names(trained) == ["client-1", "client-3", "client-4"]
        assert trained["virtual_seconds"] == pytest.approx(100)
        (dropped,) = run.of("dropped")
        assert (dropped["client"], dropped["reason"]) == ("client-2", "no result within 100 s")

    def test_who_leaves_is_given_up_when_it_has_been_silent(self, simulate: Simulate, tmp_path: Path) -> None:
        devices = trace(tmp_path, "3,1,0,2", "any,1,,")
        run = simulate(4, devices=devices, network=NET, settings={"liveness-seconds": 50.0})
        trained, evaluated = run.of("exchange-done")
        assert names(trained) == ["client-1", "client-2", "client-4"] == names(evaluated)
        assert trained["virtual_seconds"] == pytest.approx(52), "two seconds there, and fifty of silence"

    def test_absent_clients_are_not_asked_and_waited_for_where_too_few_are_there(
        self, simulate: Simulate, tmp_path: Path
    ) -> None:
        devices = trace(tmp_path, "1,1,,", "2,1,,", "3,1,30,", "4,1,10000,")
        run = simulate(4, devices=devices, network=NET, settings={"min-clients": 3}, min_nodes=2)
        trained, _ = run.of("exchange-done")
        assert names(trained) == ["client-1", "client-2", "client-3"]
        assert 30 < trained["virtual_seconds"] < 100

    def test_too_few_for_ever_ends_the_run_by_name(self, simulate: Simulate, tmp_path: Path) -> None:
        events: list[RunEvent] = []
        devices = trace(tmp_path, "1,1,,", "any,1,5000,5001")
        with pytest.raises(RoundFailed, match=r"\b3\b.*\b1\b.*300 s.*join-seconds"):
            simulate(4, devices=devices, network=NET, settings={"min-clients": 3}, events=events)
        devices = trace(tmp_path, "1,1,,", "2,1,,", "3,1,,", "any,1,0,0.001")
        with pytest.raises(RoundFailed, match=r"\b4\b"):
            simulate(4, devices=devices, min_nodes=4)

    def test_dropouts_cost_the_silence_that_gives_them_away(self, simulate: Simulate) -> None:
        calm = simulate(12, devices="slower=0:1", network=NET).of("exchange-done")[0]
        run = simulate(12, devices="slower=0:1", network=NET, drop=0.2, seed=5, settings={"liveness-seconds": 100.0})
        steps = {one["stage"] for one in run.of("dropped") if one["exchange"] == 1}
        assert steps, "the seed has to drop somebody"
        silent = run.of("exchange-done")[0]["virtual_seconds"]
        assert silent >= 100 > calm["virtual_seconds"]


class TestPlain:
    def test_late_and_absent_clients_give_errors(self, simulate: Simulate, tmp_path: Path) -> None:
        devices = trace(tmp_path, "1,1,5000,", "2,1000,,", "any,1,,")
        settings = {"aggregation": "plain", "train-seconds": 100.0}
        run = simulate(4, devices=devices, network=NET, settings=settings)
        trained, evaluated = run.of("exchange-done")
        assert names(trained) == ["client-3", "client-4"]
        assert names(evaluated) == ["client-2", "client-3", "client-4"]
        assert trained["virtual_seconds"] == pytest.approx(100)
        start = weight(simulate(4, num_server_rounds=1, lr=0.0))
        assert np.allclose(weight(run), step_of(("client-3", "client-4"), start), atol=1e-6)


class TestOverSelection:
    """Of six that are asked, four are wanted."""

    def stage(self, devices: str, clients: int = 6, quorum: int = 3) -> UpdateStage:
        found = parse_devices(devices, Network.parse(NET), clients=clients, seed=1)
        assert found is not None
        settings = JobSettings.from_mapping({"over-selection": 0.34})
        time = VirtualScheduler(devices=found, settings=settings, run_config={})
        task: Any = SimpleNamespace(seconds=3600.0, exchange=1, quorum=quorum, aggregation="secure")
        return UpdateStage(time=time, task=task, down=0, enough=4)

    def test_the_first_updates_are_enough(self, tmp_path: Path) -> None:
        with self.stage(trace(tmp_path, "1,5,,", "2,4,,", "3,3,,", "any,1,,")) as stage:
            late = stage.stragglers(dict.fromkeys(range(1, 7), 10), up=0.0)
        assert late == {1: NOT_NEEDED, 2: NOT_NEEDED}
        assert stage.time.clock.now == pytest.approx(30), "the fourth update: 10 examples, three times slower"

    def test_a_quorum_of_all_is_waited_for(self, tmp_path: Path) -> None:
        with self.stage(trace(tmp_path, "1,5,,", "2,4,,", "3,3,,", "any,1,,"), quorum=5) as stage:
            assert stage.stragglers(dict.fromkeys(range(1, 7), 10), up=0.0) == {1: NOT_NEEDED}
        assert stage.time.clock.now == pytest.approx(40)

    def test_nobody_is_waited_for_in_vain_where_others_are_enough(self, tmp_path: Path) -> None:
        with self.stage(trace(tmp_path, "1,1,0,2", "2,9,,", "any,1,,")) as stage:
            late = stage.stragglers(dict.fromkeys(range(1, 7), 10), up=0.0)
        assert late == {1: NOT_NEEDED, 2: NOT_NEEDED}
        assert stage.time.clock.now == pytest.approx(10)

    def test_too_few_updates_are_all_waited_for(self, tmp_path: Path) -> None:
        with self.stage(trace(tmp_path, "1,1,0,2", "2,1,0,3", "3,1,0,4", "any,1,,")) as stage:
            late = stage.stragglers(dict.fromkeys(range(1, 7), 10), up=0.0)
        assert sorted(late) == [1, 2, 3]
        assert stage.time.clock.now == pytest.approx(4 + 15), "until the last one has been silent for long enough"

    def test_others_stand_in_for_who_is_away(self, tmp_path: Path) -> None:
        time = self.stage(trace(tmp_path, "1,1,50,", "any,1,,"), clients=9).time
        assert time.cohort([1, 2, 3], range(1, 10), least=3, extra=time.beyond(3)) == (2, 3, 4, 5, 6)
