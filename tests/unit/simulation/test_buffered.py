"""Buffered asynchrony in memory: FedBuff's arithmetic, and what becomes of clients that are slow, or never done."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from support.tiny import TINY

from fedcore.errors import ConfigurationError, RunFailed
from fedcore.flower.app import FlowerApp
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.flower.strategies.registry import make_strategy
from fedcore.run.buffer import WorkBook
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.buffered import usual_devices
from fedcore.simulation.devices.devices import Devices, Work
from fedcore.simulation.devices.distributions import DrawnDevices
from fedcore.system.assignments import override
from fedcore.wire.events import ClientDropped, ExchangeDone, ExchangeFailed, RunEvent
from fedcore.wire.tasks import Task

sys.path.insert(0, str(TINY))
from support.raising import raises
from tiny_app.problem import gradient, initial, part

CLIENTS, LR = 6, 0.05
STEP = 1e-5
"""More than what 32-bit fields lose in some rounds of this problem, by far less than one client's update."""


class Paces(Devices):
    """The same seconds for every piece of a client's work, 1 where nothing is said; all are always there."""

    def __init__(self, seconds_of: Mapping[int, float]) -> None:
        super().__init__(DrawnDevices())
        self.seconds_of = seconds_of

    def finish_time(self, client: int, work: Work, at: float, number: int = 0) -> float:
        assert work.samples == len(part(client - 1, CLIENTS)[0])
        return at + self.seconds_of.get(client, 1.0)


@dataclass(slots=True)
class Doomed:
    """Who drops out of which exchange, and before which step."""

    steps: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    """Of the trainings, counted from 1, retries included."""
    _count: int = field(default=0, init=False)

    def drops_at_step(self, cohort: Sequence[int]) -> dict[int, str]:
        if len(cohort) == CLIENTS:  # an evaluation asks all
            return {}
        self._count += 1
        return {client: step for client, step in self.steps.get(self._count, {}).items() if client in cohort}

    def drops(self, cohort: Sequence[int]) -> Collection[int]:
        return ()


@dataclass(frozen=True, slots=True)
class Done:
    """A run that ended. weight: of the last model."""

    simulation: Simulation
    events: Sequence[RunEvent]
    weight: Any

    @property
    def seconds(self) -> float:
        """On the virtual clock."""
        return sum(event.virtual_seconds or 0.0 for event in self.events if isinstance(event, ExchangeDone))

    @property
    def sums(self) -> list[ExchangeDone]:
        return [event for event in self.events if isinstance(event, ExchangeDone) and event.trains]


def buffered(
    devices: Devices,
    *,
    rounds: int = 6,
    strategy: str = "FedAvg",
    dropouts: Doomed | None = None,
    events: list[RunEvent] | None = None,
    **settings: Any,
) -> Done:
    app, events = FlowerApp.load(TINY), [] if events is None else events
    chosen = {"asynchrony": "buffered", "buffer-size": 3, **{k.replace("_", "-"): v for k, v in settings.items()}}
    simulation = Simulation(
        app=app,
        clients=CLIENTS,
        run_config=override(app.run_config, {"num-server-rounds": rounds, "lr": LR, "strategy": strategy}, "test"),
        settings=JobSettings.from_mapping({**app.settings.to_mapping(), **chosen}),
        devices=devices,
        dropouts=dropouts,
        emit=events.append,
    )
    state = simulation.run().state
    assert state is not None
    return Done(simulation, events, state["weight"])


def fedbuff(sums: Sequence[ExchangeDone], *, constant: bool = False) -> list[Any]:
    """Algorithm 1 of FedBuff, with means weighted by examples: all versions of the weight."""
    versions = [initial()["weight"].astype(np.float64)]
    for done in sums:
        total, examples = np.zeros_like(versions[0]), 0
        for name, age in done.staleness.items():
            x, y = part(int(name.removeprefix("client-")) - 1, CLIENTS)
            start = versions[-1 - age]
            factor = 1.0 if constant else 1 / math.sqrt(1 + age)
            total += len(x) * factor * -LR * gradient(start.astype(np.float32), x, y)
            examples += len(x)
        versions.append(versions[-1] + total / examples)
    return versions


def starts(done: Done) -> list[tuple[str, int]]:
    """Who trained from which version, for everything that was summed."""
    return [(name, t - age) for t, one in enumerate(done.sums) for name, age in one.staleness.items()]


SPREAD = Paces({1: 1.0, 2: 1.3, 3: 1.7, 4: 2.9, 5: 4.1, 6: 7.3})


@pytest.mark.parametrize("rule", ["sqrt", "constant"])
def test_is_fedbuff(rule: str) -> None:
    done = buffered(SPREAD, rounds=8, staleness=rule)
    np.testing.assert_allclose(done.weight, fedbuff(done.sums, constant=rule == "constant")[-1], atol=STEP)
    assert max(max(one.staleness.values()) for one in done.sums) > 1, "the case has stale updates"
    assert len(set(starts(done))) == len(starts(done)), "an update was summed twice"


def test_versions_come_when_the_fastest_are_done() -> None:
    done = buffered(SPREAD, rounds=2)
    assert [sorted(one.staleness.items()) for one in done.sums] == [
        [("client-1", 0), ("client-2", 0), ("client-3", 0)],  # at 1.7 s
        [("client-1", 0), ("client-2", 0), ("client-4", 1)],  # at 2.7, 3.0 and 2.9 s
    ]
    assert done.seconds == pytest.approx(3.0)
    assert done.sums[1].metrics["staleness_mean"] == pytest.approx(1 / 3)
    assert done.sums[1].metrics["staleness_max"] == 1


def test_no_more_train_at_once_than_are_allowed() -> None:
    done = buffered(Paces({}), rounds=2, concurrency=2)
    # Pairs end after 1, 2, 3, 4 s; three of the first four, then the fourth, whose version is old by now, and two more.
    assert done.seconds == pytest.approx(3.0)
    assert [len(one.staleness) for one in done.sums] == [3, 3]


@pytest.mark.parametrize(("never", "times"), [(math.inf, 2), (1e9, 1)])
def test_a_straggler_that_is_never_done_stops_nothing(never: float, times: int) -> None:
    """One that leaves is given work again when it is there again; one that goes on is not there until it is done."""
    done = buffered(Paces({6: never}), rounds=12, train_seconds=5.0)
    assert len(done.sums) == 12
    assert all("client-6" not in one.staleness for one in done.sums)
    lost = [event for event in done.events if isinstance(event, ClientDropped)]
    assert {(event.client, event.stage) for event in lost} == {("client-6", "train")}
    assert len(lost) == times


def test_who_is_not_there_is_given_work_when_it_comes() -> None:
    class Late(Paces):
        def until(self, client: int, at: float) -> float | None:
            return None if client == 6 and at < 4.5 else math.inf

        def next_there(self, client: int, at: float) -> float:
            return max(at, 4.5) if client == 6 else at

    done = buffered(Late({}), rounds=12)
    first = next(number for number, one in enumerate(done.sums) if "client-6" in one.staleness)
    assert first > 4
    np.testing.assert_allclose(done.weight, fedbuff(done.sums)[-1], atol=STEP)


def test_work_that_is_taken_back_is_given_out_again_when_its_client_is_there() -> None:
    done = buffered(Paces({6: 3.0}), rounds=12, train_seconds=2.0)
    late = [event for event in done.events if isinstance(event, ClientDropped) and "train-seconds" in event.reason]
    assert 1 < len(late) <= 4
    np.testing.assert_allclose(done.weight, fedbuff(done.sums)[-1], atol=STEP)


def test_staleness_is_bounded() -> None:
    free = buffered(SPREAD, rounds=10, max_staleness=100)
    assert max(max(one.staleness.values()) for one in free.sums) > 2
    done = buffered(SPREAD, rounds=10, max_staleness=2)
    assert max(max(one.staleness.values()) for one in done.sums) == 2
    old = [event for event in done.events if isinstance(event, ClientDropped)]
    assert old
    assert all("max-staleness is 2" in event.reason for event in old)
    np.testing.assert_allclose(done.weight, fedbuff(done.sums)[-1], atol=STEP)


def test_a_buffer_that_is_never_full_is_an_error() -> None:
    never = Paces(dict.fromkeys(range(3, 7), math.inf))
    with raises(RunFailed, check="buffer-not-full", match=r"\b2\b.*\b3\b.*\b8 s.*buffer-size"):
        buffered(never, train_seconds=5.0, join_seconds=3.0)


@pytest.mark.parametrize("step", ["advertise", "share", "input"])
def test_who_drops_out_before_its_update_is_sent_keeps_it_for_the_next_sum(step: str) -> None:
    done = buffered(SPREAD, dropouts=Doomed({1: {2: step}}), buffer_size=4)
    first, second = done.sums[:2]
    assert "client-2" not in first.staleness
    assert second.staleness["client-2"] == 1
    np.testing.assert_allclose(done.weight, fedbuff(done.sums)[-1], atol=STEP)
    assert len(set(starts(done))) == len(starts(done))


@pytest.mark.parametrize("step", ["consistency", "unmask"])
def test_who_drops_out_after_that_has_its_update_in_the_sum(step: str) -> None:
    done = buffered(SPREAD, dropouts=Doomed({1: {2: step}}), buffer_size=4)
    assert done.sums[0].staleness["client-2"] == 0
    np.testing.assert_allclose(done.weight, fedbuff(done.sums)[-1], atol=STEP)
    assert len(set(starts(done))) == len(starts(done))


GONE = dict.fromkeys((1, 2), "consistency")
"""One at least still signs, so there is a record."""


def test_a_sum_that_broke_off_after_its_survivors_were_named_is_asked_for_again() -> None:
    done = buffered(SPREAD, dropouts=Doomed({1: GONE}))
    assert [event.retry for event in done.events if isinstance(event, ExchangeFailed)] == [True]
    assert done.sums[0].staleness == {"client-1": 0, "client-2": 0, "client-3": 0}
    np.testing.assert_allclose(done.weight, fedbuff(done.sums)[-1], atol=STEP)


@pytest.mark.parametrize("again", [{1: "advertise"}, GONE])
def test_where_it_breaks_off_again_its_updates_are_in_no_other(again: Mapping[int, str]) -> None:
    done = buffered(SPREAD, dropouts=Doomed({1: GONE, 2: again}))
    assert [event.retry for event in done.events if isinstance(event, ExchangeFailed)] == [True, True]
    lost = [event.client for event in done.events if isinstance(event, ClientDropped) and event.stage == "train"]
    assert lost == ["client-1", "client-2", "client-3"]
    assert sorted(done.sums[0].staleness) == ["client-4", "client-5", "client-6"]
    assert not {(name, 0) for name in lost} & set(starts(done)), "what was named once is in no other sum"
    assert sorted(done.sums[1].staleness) == lost
    np.testing.assert_allclose(done.weight, fedbuff(done.sums)[-1], atol=STEP)


def test_updates_of_an_attempt_that_named_nobody_are_offered_again() -> None:
    done = buffered(SPREAD, dropouts=Doomed({1: dict.fromkeys((1, 2), "share")}))
    assert [event.retry for event in done.events if isinstance(event, ExchangeFailed)] == [True]
    assert sorted(done.sums[0].staleness) == ["client-1", "client-2", "client-3"]


def test_an_update_in_a_second_sum_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a server that does not take note of what it has summed."""
    spend = WorkBook.spend

    def keeps(book: WorkBook, task: Task, clients: Collection[int]) -> None:
        held = {client: book.in_hand[client] for client in clients}
        spend(book, task, clients)
        spent = dict(book.spent)
        for client, start in held.items():
            del book.spent[client]
            assert book.take_back(client, start, ready=True)
        book.spent.update(spent)

    monkeypatch.setattr(WorkBook, "spend", keeps)
    monkeypatch.setattr(
        "fedcore.federation.admission.simulated.SimulatedOwners.drop_work", lambda owners, clients: None
    )
    events: list[RunEvent] = []
    with pytest.raises(RunFailed, match="update-reused"):
        buffered(SPREAD, events=events)
    assert sum(isinstance(event, ExchangeDone) and event.trains for event in events) == 1


def test_an_update_that_was_deleted_is_not_promised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted likewise, and the clients have kept their side."""
    spend = WorkBook.spend

    def keeps(book: WorkBook, task: Task, clients: Collection[int]) -> None:
        held = {client: book.in_hand[client] for client in clients}
        spend(book, task, clients)
        spent = dict(book.spent)
        for client, start in held.items():
            del book.spent[client]
            assert book.take_back(client, start, ready=True)
        book.spent.update(spent)

    monkeypatch.setattr(WorkBook, "spend", keeps)
    with pytest.raises(RunFailed, match="start-mismatch"):
        buffered(SPREAD)


def test_ages_beyond_the_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a server that sums whatever is there."""
    make = WorkBook.of

    def patient(*given: Any, **more: Any) -> WorkBook:
        return replace(make(*given, **more), max_staleness=99)

    monkeypatch.setattr(WorkBook, "of", patient)
    with pytest.raises(RunFailed, match="buffer-off-settings"):
        buffered(SPREAD, rounds=10, max_staleness=1)


@pytest.mark.parametrize("strategy", ["FedAvg", "FedAvgM", "FedAdam"])
def test_any_strategy_of_the_mean_alone_may_lead(strategy: str) -> None:
    assert len(buffered(SPREAD, rounds=2, strategy=strategy).sums) == 2


def test_strategies_that_relate_the_clients_of_a_round_are_refused_and_fedbuff_is_for_buffers() -> None:
    grid = SecureGrid(cast(Any, None), run_id=1, buffered=True)
    arrays, config = ArrayRecord(), ConfigRecord()
    with raises(ConfigurationError, check="one-round", match=r"scaffold.*\"buffered\""):
        list(make_strategy({"strategy": "scaffold"}, trained=["w"]).configure_train(1, arrays, config, grid))
    waiting = SecureGrid(cast(Any, None), run_id=1)
    with raises(ConfigurationError, check="only-buffered", match=r"fedbuff.*\"buffered\""):
        list(make_strategy({"strategy": "fedbuff"}).configure_train(1, arrays, config, waiting))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer_size": 1}, {"check": "buffer-below-minimum", "match": r"buffer-size.*\b1\b.*\b3\b"}),
        ({"buffer_size": 7}, {"check": "buffer-above-clients", "match": r"buffer-size.*\b7\b.*\b6\b"}),
    ],
)
def test_a_buffer_that_cannot_be_is_refused(settings: dict[str, Any], message: dict[str, str]) -> None:
    with raises(ConfigurationError, **message):
        buffered(SPREAD, **settings)


def test_without_devices_work_takes_half_normal_times() -> None:
    work = Work(samples=1000)
    seconds = [usual_devices(7).finish_time(client, work, 10.0, 1) - 10.0 for client in range(1, 1001)]
    assert np.mean(seconds) == pytest.approx(1 + math.sqrt(2 / math.pi), rel=0.05)
    assert seconds[0] != usual_devices(7).finish_time(1, work, 10.0, 2) - 10.0
    assert len(buffered(usual_devices(7), rounds=3).sums) == 3
