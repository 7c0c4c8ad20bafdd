"""The decisions of a parameter server under generated workers: what is applied, who may read, how old models are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedcore.comparison.parameter_server.messages import PushPullReply, PushPullRequest, read_action, write_action
from fedcore.comparison.parameter_server.shard import FlatModel, KeyRanges, ModelShard
from fedcore.comparison.parameter_server.update_order import (
    Apply,
    Arrivals,
    Push,
    SendModel,
    SimulatedClock,
    SimulatedLink,
    Snapshot,
    StalenessExceeded,
    StepTaken,
    UpdateOrder,
)
from fedcore.errors import ConfigurationError, UsageError
from fedcore.simulation.devices.network import Network
from fedcore.training import OptimizerConfig

BOUNDS = [0.0, 1.0, 3.0, math.inf]


def push(examples=4, *, total=None, last=False):
    return Push(examples=examples, total=total or examples, loss=0.5 * examples, last=last)


class Crowd:
    """Workers that run in a generated order, and the laws that hold whatever it is."""

    def __init__(self, steps, *, bound, together):
        self.left = dict(enumerate(steps))
        self.core = UpdateOrder.of(len(steps), bound=bound, together=together, round_samples=10)
        self.ready: set[int] = set()
        self.applied: list[int] = []
        self.rounds: list[int] = []
        self.lost: set[int] = set()
        for worker in self.left:
            self.do(self.core.ask(worker))

    def do(self, actions):
        for action in actions:
            match action:
                case SendModel(worker):
                    living = [w for w in self.left if self.left[w]]
                    clocks = {w: self.applied.count(w) for w in living}
                    assert clocks[worker] - min(clocks.values()) <= self.core.bound
                    self.ready.add(worker)
                case Apply(workers, _):
                    assert not set(workers) & self.lost
                    self.applied += workers
                    for worker in workers:
                        self.left[worker] -= 1
                case StepTaken(worker):
                    assert self.left[worker] == 0
                case Snapshot(number):
                    self.rounds.append(number)

    def step(self, worker):
        self.ready.remove(worker)
        self.do(self.core.push(worker, push(last=self.left[worker] == 1)))

    def lose(self, worker):
        self.lost.add(worker)
        self.ready.discard(worker)
        self.left[worker] = 0
        self.do(self.core.lose(worker))


@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from(BOUNDS), st.booleans())
def test_no_worker_reads_beyond_the_bound_and_all_come_to_their_end(data, steps, bound, together):
    if together:
        steps = [max(steps)] * len(steps)
    crowd = Crowd(steps, bound=0.0 if together else bound, together=together)
    while crowd.core.clocks:
        assert crowd.ready, "nobody can go on"
        if data.draw(st.integers(0, 9)) == 0:
            crowd.lose(data.draw(st.sampled_from(sorted(crowd.core.clocks))))
        else:
            crowd.step(data.draw(st.sampled_from(sorted(crowd.ready))))
    assert not any(crowd.left.values())
    core = crowd.core
    assert core.samples == 4 * len(crowd.applied) == 4 * sum(core.steps.values())
    assert crowd.rounds == list(range(1, math.ceil(core.samples / 10) + 1))
    assert sum(core.stale_clocks.values()) == sum(core.stale_updates.values()) == len(crowd.applied)
    assert max(core.stale_clocks, default=0) <= core.bound
    if together:
        assert set(core.stale_updates) <= {0}


def test_a_fast_worker_is_held_back_until_the_slowest_has_pushed():
    core = UpdateOrder.of(2, bound=1, together=False, round_samples=100)
    assert core.ask(0) == []
    assert core.ask(1) == [SendModel(0), SendModel(1)]
    assert core.push(0, push()) == [Apply((0,), 1.0), SendModel(0)]
    assert core.push(0, push()) == [Apply((0,), 1.0)]
    assert core.push(1, push()) == [Apply((1,), 1.0), SendModel(0), SendModel(1)]
    assert core.push(0, push()) == [Apply((0,), 1.0)]
    assert core.stale_clocks == {0: 2, 1: 2}
    assert core.stale_updates == {0: 3, 2: 1}
    # Nobody waits for one that is gone, nor for one that has done its last step.
    assert core.lose(1) == [SendModel(0)]
    assert core.push(0, push(last=True)) == [Apply((0,), 1.0), StepTaken(0), Snapshot(1)]
    assert core.over


def test_the_step_of_those_that_are_left_is_the_mean_over_their_examples():
    core = UpdateOrder.of(3, bound=0, together=True, round_samples=8)
    for worker in range(3):
        core.ask(worker)
    core.push(0, push(3, total=12))
    core.push(2, push(1, total=12))
    assert core.lose(1) == [Apply((0, 2), 3.0), SendModel(0), SendModel(2)]
    core.push(2, push(1, total=12))
    assert core.lose(0) == [Apply((2,), 12.0), SendModel(2)]
    # The model at the end is that of a round, though the round stayed short.
    assert core.lose(2) == [Snapshot(1)]


def test_a_push_without_a_read_or_from_too_old_a_model_is_refused():
    core = UpdateOrder.of(2, bound=1, together=False, round_samples=8)
    with pytest.raises(UsageError):
        core.push(0, push())
    core.ask(0)
    core.ask(1)
    core.push(0, push())
    core.bound = 0  # it has read one step ahead of the other
    with pytest.raises(StalenessExceeded):
        core.push(0, push())


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(0, 3)), max_size=12))
def test_on_the_simulated_clock_messages_are_taken_in_order_once_nobody_can_send_an_earlier_one(sent):
    arrivals = Arrivals({0, 1, 2, 3}, conservative=True)
    for number, (at, worker) in enumerate(sent):
        arrivals.put(worker, at, number)
    taken = []
    while (entry := arrivals.next()) is not None:
        taken.append(entry)
    present = {worker for _, worker in sent}
    assert taken == (sorted(taken) if present == {0, 1, 2, 3} else [])
    for worker in {0, 1, 2, 3} - present:
        arrivals.lose(worker)
    while (entry := arrivals.next()) is not None:
        taken.append(entry)
    assert taken == sorted((at, worker, number) for number, (at, worker) in enumerate(sent))


def test_the_servers_link_takes_one_message_after_the_other():
    network = Network.parse("bandwidth=8kbit,latency=1s,server=16kbit")
    clock = SimulatedClock(network=network, shards=1)
    # 1,000 bytes take 1 s on a site's link and 0.5 s on the server's.
    assert clock.arrival(2.0, 1000) == pytest.approx(4.0)
    for expected in (4.0, 4.5, 5.0):
        clock.handle(4.0, 1000)
        assert clock.now == pytest.approx(expected)
    assert [clock.answer(1000), clock.answer(1000)] == pytest.approx([7.0, 7.5])
    assert SimulatedClock(network=network, shards=4).answer(1000) == pytest.approx(2.0)
    assert SimulatedLink(8.0).through(3.0, 1) == 3.0


def test_messages_survive_the_way_over_the_wire():
    for request in (PushPullRequest(None, 0.0), PushPullRequest(push(3, total=9, last=True), 2.5)):
        assert PushPullRequest.read(request.header()) == request
    assert PushPullReply.read(PushPullReply(1.5, 7).header()) == PushPullReply(1.5, 7)
    for action in (Apply((0, 2), 1.5), SendModel(1), StepTaken(2), Snapshot(4), None):
        assert read_action(write_action(action, 3)) == action


def model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3, bias=False))


@given(st.integers(1, 90))
def test_ranges_cover_every_number_once_and_are_of_equal_size(shards):
    ranges = KeyRanges.of(model(), shards=shards)
    assert ranges.size == 5 * 7 + 7 + 7 + 7 + 21 + 7 + 7
    assert ranges.trained == ranges.size - 14
    assert [place.start for place in ranges.ranges] == [0, *(place.stop for place in ranges.ranges[:-1])]
    assert {len(place) for place in ranges.ranges} <= {ranges.size // shards, ranges.size // shards + 1}
    for key in ranges.keys:
        parts = [place.within(key) for place in ranges.ranges]
        numbers = [number for part in parts for number in range(part.start, part.stop)]
        assert numbers == list(range(key.stop - key.start))


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("shards", [1, 3])
def test_shards_step_as_the_apps_optimizer_does_on_the_whole_model(name, shards):
    config = OptimizerConfig(name=name, lr=0.1, momentum=0.9 if name == "sgd" else 0.0, weight_decay=0.01)
    whole, optimizer = model(), None
    optimizer = config(whole)
    ranges = KeyRanges.of(whole, shards=shards)
    servers = [ModelShard(model(), config, ranges, number) for number in range(shards)]
    flat, vector = FlatModel(whole, ranges), torch.zeros(ranges.size)
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        pushes = [torch.randn(ranges.size, generator=generator) for _ in range(2)]
        for server, place in zip(servers, ranges.ranges, strict=True):
            server.apply([part[place.start : place.stop].clone() for part in pushes], 0.5)
        flat.write((pushes[0] + pushes[1]) * 0.5, buffers=True)
        gradients = [parameter.detach().clone() for parameter in whole.parameters()]
        flat.write(vector if step else before(ranges), buffers=False)
        for parameter, gradient in zip(whole.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        flat.read(vector)
    torch.testing.assert_close(torch.cat([server.values for server in servers]), vector, rtol=1e-6, atol=1e-7)


def before(ranges):
    vector = torch.zeros(ranges.size)
    FlatModel(model(), ranges).read(vector)
    return vector


def test_what_shards_cannot_do_is_refused():
    with pytest.raises(ConfigurationError, match="bfloat16"):
        KeyRanges.of(nn.Linear(2, 2, dtype=torch.bfloat16), shards=1)
    with pytest.raises(ConfigurationError, match=r"\b6\b.*\b7\b"):
        KeyRanges.of(nn.Linear(2, 2), shards=7)
    ranges = KeyRanges.of(nn.Linear(2, 2), shards=2)
    with pytest.raises(ConfigurationError, match="shards=1"):
        ModelShard(nn.Linear(2, 2), lambda module: torch.optim.Adafactor(module.parameters()), ranges, 0)
