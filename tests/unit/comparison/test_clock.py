"""The simulated clock against sums made by hand."""

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcore.comparison.app_probe import fit_cost, measure_cost
from fedcore.comparison.measure.clock import (
    TimedExchange,
    allreduce_seconds,
    averaging_seconds,
    buffered_seconds,
    centralized_seconds,
    federated_seconds,
    global_shares,
    local_seconds,
    paces,
    ring_seconds,
)
from fedcore.comparison.workers.problem import Problem
from fedcore.comparison.workers.schedule import Schedule
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Cost, Network

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
COST = Cost(step=1.0, example=0.5)
# One byte a second and 0.25 s a message, so that sums stay readable.
SLOW = Network(name="slow", bandwidth=8.0, latency=0.25, server=16.0)
SCHEDULE = Schedule(counts=(6, 3), batch_size=2, epochs=1)


def test_centralized_is_steps_and_examples() -> None:
    # Nine examples in batches of four: 4 + 4 + 1.
    assert centralized_seconds(SCHEDULE, 4, 2, COST) == [3 + 4.5, 2 * (3 + 4.5)]


def test_allreduce_waits_for_the_largest_share_and_the_ring() -> None:
    shares = global_shares(SCHEDULE, 3)
    assert shares == [(2, 1)] * 3
    ring = 2 * 2 * 0.25 + 10.0
    assert allreduce_seconds(SCHEDULE, 3, 2, COST, SLOW, bytes_per_step=10) == pytest.approx(
        [3 * (2.0 + ring), 6 * (2.0 + ring)]
    )


def test_a_slow_site_holds_up_every_step() -> None:
    slow = Network(name="", bandwidth=8.0, latency=0.0, server=8.0, slow={1: 10.0})
    assert allreduce_seconds(SCHEDULE, 3, 1, COST, slow, bytes_per_step=0) == [3 * 10 * 1.5]


def test_averaging_waits_for_the_slowest_sum_not_for_every_slow_step() -> None:
    """Sites 0 and 1 are slow at different steps: together they lose more where they meet after each."""
    transient = Network(name="", bandwidth=8e9, latency=0.0, server=8e9, transient=(0.5, 10.0), seed=3)
    free = {"bytes_per_average": 0.0}
    schedule = Schedule(counts=(60, 60), batch_size=2, epochs=1)
    often = averaging_seconds(schedule, 4, 1, COST, transient, h=1, **free)
    seldom = averaging_seconds(schedule, 4, 1, COST, transient, h=30, **free)
    alone = local_seconds(schedule, 1, COST, transient)
    assert often == allreduce_seconds(schedule, 4, 1, COST, transient, bytes_per_step=0)
    assert often[0] > seldom[0]
    assert seldom == pytest.approx(alone)


def test_averaging_meets_at_the_end_of_a_round() -> None:
    # Three steps a round and h = 2: two averages a round.
    ring = 2 * 2 * 0.25 + 10.0
    assert averaging_seconds(SCHEDULE, 3, 2, COST, SLOW, h=2, bytes_per_average=10) == pytest.approx(
        [3 * 2.0 + 2 * ring, 2 * (3 * 2.0 + 2 * ring)]
    )


def test_alone_the_slowest_site_ends_a_round() -> None:
    # Three steps of two against two steps of two and one.
    assert local_seconds(SCHEDULE, 2, COST, SLOW) == [6.0, 12.0]


def test_a_federated_exchange_shares_the_servers_link() -> None:
    exchanges = [TimedExchange(server_round=r, up={0: 4, 1: 2}, down={0: 8, 1: 8}) for r in (1, 2)]
    # The server's two bytes a second are one for each client, as fast as a site's own link.
    plain = 4 * 2 * 0.25 + 6.0 + 12.0
    assert federated_seconds(SCHEDULE, exchanges, COST, SLOW, secure=False) == pytest.approx([plain, 2 * plain])
    narrow = Network(name="", bandwidth=8.0, latency=0.0, server=8.0)
    assert federated_seconds(SCHEDULE, exchanges, COST, narrow, secure=True)[0] == pytest.approx(6.0 + 24.0)


def test_keys_are_exchanged_beside_the_training() -> None:
    exchange = [TimedExchange(server_round=1, up={0: 0}, down={0: 0})]
    far = Network(name="", bandwidth=8.0, latency=2.0, server=8.0)
    assert federated_seconds(SCHEDULE, exchange, COST, far, secure=True) == [6 * 4.0 + 2 * 4.0]  # longer than 6 s
    assert federated_seconds(SCHEDULE, exchange, COST, SLOW, secure=True) == [6 * 0.5 + 6.0]


def test_one_worker_needs_no_ring() -> None:
    assert ring_seconds(1, 100.0, SLOW) == 0.0


@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    batch=st.integers(0, 5),
    passes=st.one_of(
        st.builds(lambda n: {"epochs": n}, st.integers(1, 3)), st.builds(lambda n: {"steps": n}, st.integers(1, 9))
    ),
)
def test_the_clock_counts_the_steps_and_examples_of_the_schedule(
    counts: list[int], batch: int, passes: dict[str, int]
) -> None:
    schedule = Schedule(counts=tuple(counts), batch_size=batch, **passes)
    free = Network(name="", bandwidth=1.0, latency=0.0, server=1.0)
    taken = [list(schedule.own(site, seed=1)) for site in range(len(counts))]
    by_hand = max(sum(COST.seconds(rows.total) for rows in site) for site in taken)
    assert local_seconds(schedule, 1, COST, free) == pytest.approx([by_hand])
    pooled = list(schedule.pooled(batch, seeds=range(len(counts))))
    assert centralized_seconds(schedule, batch, 1, COST) == pytest.approx(
        [sum(COST.seconds(rows.total) for rows in pooled)]
    )
    assert [sum(share) for share in global_shares(schedule, batch)] == [rows.total for rows in pooled]


@pytest.mark.parametrize(
    ("measured", "cost"),
    [
        ([(2, 3.0), (4, 5.0)], Cost(step=1.0, example=1.0)),
        ([(2, 3.0), (4, 2.0)], Cost(step=2.5, example=0.0)),
        ([(1, 1.0), (2, 3.0)], Cost(step=0.0, example=7 / 5)),
        ([(2, 3.0)], Cost(step=3.0, example=0.0)),
    ],
)
def test_no_part_of_a_cost_is_negative(measured: list[tuple[int, float]], cost: Cost) -> None:
    assert fit_cost(measured) == cost


def test_a_cost_is_measured_on_the_apps_own_model() -> None:
    app = FlowerApp.load(DIGITS)
    problem = Problem.load(app, config=app.run_config, sites=4)
    threads = torch.get_num_threads()
    ticks = itertools.count()
    # Every look at this clock is a second after the last: a step takes one second, whatever its batch.
    cost = measure_cost(problem, timer=lambda: float(next(ticks)))
    assert cost == Cost(step=1.0, example=0.0)
    assert measure_cost(problem).seconds(16) > 0
    assert torch.get_num_threads() == threads


def _summed(**staleness: int) -> TimedExchange:
    """Of a buffered exchange that moves no bytes; keys are `site0`, `site1`."""
    ages = {int(name.removeprefix("site")): age for name, age in staleness.items()}
    return TimedExchange(server_round=1, up=dict.fromkeys(ages, 0.0), down=dict.fromkeys(ages, 0.0), staleness=ages)


def test_a_buffer_waits_for_its_own_updates_alone() -> None:
    """Site 0 takes 6 s a training, or 60 where it is slow, and site 1 takes 3.5."""
    fast = Network(name="", bandwidth=8e9, latency=0.0, server=8e9)
    mixed = [_summed(site1=0), _summed(site0=1, site1=0), _summed(site1=0)]
    assert buffered_seconds(SCHEDULE, mixed, COST, fast) == [3.5, 7.0, 10.5]
    slow = Network(name="", bandwidth=8e9, latency=0.0, server=8e9, slow={0: 10.0})
    assert buffered_seconds(SCHEDULE, [_summed(site1=0), _summed(site1=0), _summed(site0=2)], COST, slow)[-1] == 60.0
    assert paces(SCHEDULE, 2, COST, slow, quickest=7.0) == [[120.0, 120.0], [7.0, 7.0]]
