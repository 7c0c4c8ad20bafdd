"""Simulated devices: what words and traces mean, and when an update is there."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, median, stdev

import pytest
from support.raising import raises

from fedcore.errors import ConfigurationError, UnknownKey, UsageError
from fedcore.simulation.devices.availability import ComesAndGoes, Intervals
from fedcore.simulation.devices.choice import parse_devices
from fedcore.simulation.devices.clock import EventQueue, VirtualClock
from fedcore.simulation.devices.device_file import TracedDevices
from fedcore.simulation.devices.devices import Devices, Work, wait_until_present, work_of
from fedcore.simulation.devices.distributions import DrawnDevices
from fedcore.simulation.devices.network import Network

MANY = range(1, 2001)
DAY = 86_400.0


def drawn(text: str, network: str = "none", seed: int = 1) -> Devices:
    devices = parse_devices(text, Network.parse(network), clients=len(MANY), seed=seed)
    assert devices is not None
    return devices


def traced(folder: Path, *lines: str, clients: int = 3, network: str = "none") -> Devices:
    file = folder / "devices.csv"
    file.write_text("\n".join(lines) + "\n")
    devices = parse_devices(str(file), Network.parse(network), clients=clients, seed=1)
    assert devices is not None
    return devices


class TestWords:
    def test_distributions_are_what_their_names_say(self) -> None:
        times = [math.log(drawn("time=lognormal:0.5").device(client).time) for client in MANY]
        assert abs(median(times)) < 0.05
        assert abs(stdev(times) - 0.5) < 0.05
        halves = [drawn("time=halfnormal:2").device(client).time for client in MANY]
        assert min(halves) >= 1
        assert abs(fmean(halves) - (1 + 2 * math.sqrt(2 / math.pi))) < 0.1
        evens = [drawn("time=uniform:1:3").device(client).time for client in MANY]
        assert min(evens) >= 1
        assert max(evens) <= 3
        assert abs(fmean(evens) - 2) < 0.05

    def test_a_share_of_them_is_slower(self) -> None:
        times = [drawn("slower=0.3:10").device(client).time for client in MANY]
        assert set(times) == {1.0, 10.0}
        assert abs(times.count(10.0) / len(times) - 0.3) < 0.03

    def test_the_seed_decides_and_repeats(self) -> None:
        one, same, other = (drawn("time=lognormal:1,vary=lognormal:1", seed=seed) for seed in (1, 1, 2))
        work = Work(samples=100)
        assert [one.seconds(7, work, number) for number in range(3)] == [
            same.seconds(7, work, number) for number in range(3)
        ]
        assert one.seconds(7, work) != other.seconds(7, work)
        assert one.seconds(7, work, 0) != one.seconds(7, work, 1)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("time=lognormal", r"'time=lognormal'.*\b1\b"),
            ("time=uniform:3:1", "'time=uniform:3:1'"),
            ("time=normal:1", r"'time=normal:1'.*lognormal.*halfnormal.*uniform"),
            ("time=lognormal:x", r"'time=lognormal:x'.*'x'"),
            ("slower=0.3", r"'slower=0\.3'"),
            ("slower=1.3:2", r"'slower=1\.3:2'.*\b1\b"),
            ("there=0:10", r"'there=0:10'.*\b0\b"),
            ("time", r"'time'.*time="),
            ("time=lognormal:1,time=lognormal:2", "'time=lognormal:2'"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, text: str, said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            DrawnDevices.parse(text)

    def test_an_unknown_word_is_refused_by_name(self) -> None:
        with pytest.raises(UnknownKey, match="slow"):
            DrawnDevices.parse("slow=0.3:10")


class TestTrace:
    def test_rows_of_clients_and_of_kinds(self, tmp_path: Path) -> None:
        devices = traced(
            tmp_path, "client,time,up,down", "client-2,4,1Mbit,", "any-old,8,,", "any-new,1,,", clients=50,
            network="bandwidth=8Mbit,latency=0s",
        )  # fmt: skip
        assert devices.device(2).time == 4
        assert devices.device(2).up == 1e6
        assert devices.device(2).down == 8e6
        assert {devices.device(client).time for client in range(3, 51)} == {1.0, 8.0}

    def test_intervals_repeat(self, tmp_path: Path) -> None:
        devices = traced(
            tmp_path, "client,from,to,repeat", "1,0,3600,86400", "1,72000,86400,86400", "2,100,200,", "any,,,"
        )  # fmt: skip
        assert devices.until(1, 10.0) == 3600
        assert devices.until(1, 5000.0) is None
        assert devices.next_there(1, 5000.0) == 72_000
        assert devices.until(1, 80_000.0) == DAY + 3600, "the interval that goes on after midnight is one"
        assert devices.next_there(1, 3 * DAY + 4000) == 3 * DAY + 72_000
        assert devices.next_there(2, 0.0) == 100
        assert devices.next_there(2, 200.0) == math.inf
        assert devices.until(3, 1e9) == math.inf

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            (("time", "1"), {"check": "columns", "match": "client"}),
            (("client,time", "1,2", "bob,1"), {"match": r"line 3.*'bob'"}),
            (("client,time", "1,-2"), {"match": r"line 2.*time = -2"}),
            (("client,time", "1,fast"), {"match": r"line 2.*time = 'fast'"}),
            (("client,up", "1,20"), {"match": r"line 2.*up = '20'"}),
            (("client,time", "1,2", "1,3"), {"match": r"line 3: time.*line 2"}),
            (("client,time", "1,2", "1,2"), {"match": "line 3: line 2"}),
            (("client,from,to", "1,5,5"), {"match": r"line 2.*to = 5.*from = 5"}),
            (("client,from,to", "1,5,9", "1,8,12"), {"check": "intervals-overlap", "match": "line 3"}),
            (("client,from,to,repeat", "1,5,90,60"), {"match": r"line 2.*\b60 s"}),
            (("client,repeat", "1,60"), {"match": r"line 2.*repeat.*from.*\bto\b"}),
            (("client,time", "1,2,3"), {"check": "value-count", "match": "line 2"}),
            (("client,time", "1,2"), {"check": "no-row", "match": "client 2"}),
        ],
    )
    def test_what_cannot_be_meant_is_refused_by_its_line(
        self, tmp_path: Path, lines: tuple[str, ...], said: dict[str, str]
    ) -> None:
        with raises(ConfigurationError, **said):
            traced(tmp_path, *lines)

    def test_an_unknown_column_and_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownKey, match="speed"):
            traced(tmp_path, "client,speed", "1,2")
        with pytest.raises(ConfigurationError, match=r"none\.csv"):
            TracedDevices.read(tmp_path / "none.csv")


class TestTimes:
    def test_of_the_way_and_the_work(self) -> None:
        devices = drawn("slower=1:2", "bandwidth=8Mbit,latency=10ms,step=1ms,example=10us")
        work = Work(steps=10, samples=100, down=1e6, up=5e5)
        assert devices.seconds(1, work) == pytest.approx(2 * (0.01 + 0.001) + 1.5)
        assert devices.finish_time(1, work, at=5.0) == pytest.approx(5 + devices.seconds(1, work))
        crowd = Work(down=1e6, sharing=4)
        assert devices.seconds(1, crowd) == pytest.approx(4 + 2 * 0.001), "four share the server's link"

    def test_who_leaves_before_it_is_done_never_is(self, tmp_path: Path) -> None:
        devices = traced(tmp_path, "client,from,to", "any,10,12", network="none")
        work = Work(samples=1000)
        assert devices.finish_time(1, work, at=10.5) == 11.5
        assert devices.finish_time(1, work, at=11.5) == math.inf
        assert devices.finish_time(1, work, at=0.0) == math.inf

    def test_the_first_time_at_which_enough_are_there(self, tmp_path: Path) -> None:
        devices = traced(tmp_path, "client,from,to", "1,0,50", "2,20,60", "3,30,40")
        assert wait_until_present(devices, [1, 2, 3], 0.0, least=1) == (0.0, [1])
        assert wait_until_present(devices, [1, 2, 3], 0.0, least=2) == (20.0, [1, 2])
        assert wait_until_present(devices, [1, 2, 3], 0.0, least=3) == (30.0, [1, 2, 3])
        assert wait_until_present(devices, [1, 2, 3], 45.0, least=3) == (math.inf, [])

    def test_coming_and_going_has_its_share_and_repeats(self) -> None:
        one, same = (ComesAndGoes(0.8, 60.0, "7/1") for _ in range(2))
        times = [float(at) for at in range(0, 200_000, 7)]
        there = [one.until(at) is not None for at in times]
        assert abs(fmean(there) - 0.8) < 0.03
        assert [same.until(at) is not None for at in reversed(times)] == there[::-1], "whatever is asked first"
        for at in times[:500]:
            following = one.next_there(at)
            assert one.until(following) is not None
            assert following >= at

    def test_local_work_by_the_run_config(self) -> None:
        assert work_of({"batch-size": 10, "local-epochs": 3}, 25) == (9, 75)
        assert work_of({"batch-size": 10, "local-epochs": 0, "local-steps": 4}, 25) == (4, 40)
        assert work_of({"batch-size": 0, "local-epochs": 2}, 25) == (2, 50)
        assert work_of({}, 25) == (1, 25)
        assert work_of({"batch-size": 10}, 0) == (0, 0)

    def test_intervals_without_an_end(self) -> None:
        assert Intervals(((5.0, math.inf),)).until(6.0) == math.inf


class TestClock:
    def test_events_in_the_order_of_time_and_then_of_arrival(self) -> None:
        queue: EventQueue[str] = EventQueue()
        for time, item in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (math.inf, "never")):
            queue.push(time, item)
        assert len(queue) == 3
        assert queue.next_time == 1.0
        assert [queue.pop() for _ in range(3)] == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
        assert queue.next_time == math.inf

    def test_it_never_goes_back(self) -> None:
        clock = VirtualClock()
        clock.advance_to(3.0)
        for time in (2.0, math.inf, math.nan):
            with pytest.raises(UsageError):
                clock.advance_to(time)
        assert clock.now == 3.0
