"""Who gets which clients: the longest first, chunks that get smaller, and everybody once."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.simulation.workers.scheduling import MOST_AT_ONCE, Costs, Homes, Queue, cut


def finished(costs: dict[int, float], workers: int, homes: Homes | None = None) -> tuple[float, dict[int, int]]:
    """When the last worker ends, each taking its next chunk when it has done one; and who had whom."""
    homes = homes or Homes(workers)
    queue = Queue(costs, homes)
    free = [(0.0, worker) for worker in range(workers)]
    had: dict[int, int] = {}
    end = 0.0
    while free:
        now, worker = heapq.heappop(free)
        chunk = queue.take(worker)
        assert len(chunk) <= MOST_AT_ONCE
        assert not set(chunk) & set(had)
        had.update(dict.fromkeys(chunk, worker))
        end = max(end, now)
        if chunk:
            heapq.heappush(free, (now + sum(costs[client] for client in chunk), worker))
    assert not queue
    return end, had


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=120), st.integers(1, 9))
def test_every_client_goes_out_once_and_workers_end_together(seconds: list[float], workers: int):
    costs = dict(enumerate(seconds, start=1))
    end, had = finished(costs, workers)
    assert set(had) == set(costs)
    floor = max(*seconds, sum(seconds) / workers)
    assert end <= sum(seconds) / workers + max(seconds) + 1e-9  # any list schedule (Graham 1966)
    assert end <= 2 * floor + 1e-9


def test_the_longest_go_first():
    costs = {1: 1.0, 2: 9.0, 3: 5.0, 4: 9.0}
    homes = Homes(2)
    queue = Queue(costs, homes)
    assert [list(queue.take(worker)) for worker in (0, 1, 0, 1)] == [[2], [4], [3], [1]]


def test_a_few_long_clients_among_many_do_not_keep_the_others_waiting():
    drawn = np.random.default_rng(1).lognormal(0.0, 1.0, 400)
    costs = {client: float(value) for client, value in enumerate(drawn, start=1)}
    end, _ = finished(costs, 8)
    assert end < 1.05 * max(sum(costs.values()) / 8, *costs.values())


def test_a_client_goes_back_to_its_worker_unless_that_would_keep_it_waiting():
    costs = dict.fromkeys(range(1, 41), 1.0)
    homes = Homes(2)
    _, first = finished(costs, 2, homes)
    _, second = finished(costs, 2, homes)
    assert first == second
    queue = Queue({client: 1.0 for client in costs if first[client] == 0}, homes)
    assert queue.take(1), "a worker without work of its own takes another's"


def test_pinned_clients_never_move():
    homes = Homes(3, pinned=True)
    for chosen in ([1, 2, 3, 4, 5, 6], [3, 6, 9]):
        _, had = finished(dict.fromkeys(chosen, 1.0), 3, homes)
        assert all(worker == client % 3 for client, worker in had.items())


def test_costs_are_those_of_last_time_then_by_examples_then_the_mean():
    costs = Costs()
    assert costs.expected("train", [1, 2]) == {1: 1.0, 2: 1.0}
    costs.learn("train", 1, 2.0, 100)
    costs.learn("train", 2, 4.0, 200)
    costs.learn("evaluate", 3, 0.5, 50)
    assert costs.expected("train", [1, 2, 3, 4]) == {1: 2.0, 2: 4.0, 3: pytest.approx(1.0), 4: pytest.approx(3.0)}


@given(st.integers(0, 70), st.integers(1, 20), st.integers(1, 6))
def test_groups_hold_everybody_in_order_and_workers_get_as_many(count: int, size: int, workers: int):
    clients = list(range(1, count + 1))
    groups = cut(clients, size, workers)
    assert [client for group in groups for client in group] == clients
    assert all(1 <= len(group) <= size for group in groups)
    assert len({len(group) for group in groups}) <= 2
    if size > 1 and count >= workers * size:
        assert len(groups) % workers == 0


def test_a_group_goes_to_one_worker_as_a_chunk_of_its_own():
    queue = Queue({1: 1.0, 2: 1.0, 3: 5.0, 4: 5.0}, Homes(2), groups=[[1, 2], [3, 4]])
    assert [list(queue.take(worker)) for worker in (0, 1, 0)] == [[3, 4], [1, 2], []]
