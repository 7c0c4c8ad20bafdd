"""The process of one shard. Shard 0 leads: it alone decides, and tells the others each action in turn.

What a worker sends reaches the leader last (`worker.py`), so that every shard has a gradient before the leader decides
about it. Each shard carries the actions out in the leader's order, on its own range.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from fedcore.compare.parameter_server.arrivals import Arrivals, SimulatedClock
from fedcore.compare.parameter_server.coordinator import Action, Answer, Apply, Coordinator, Release, Snapshot
from fedcore.compare.parameter_server.doors import Door, Knock
from fedcore.compare.parameter_server.keys import KeyRanges
from fedcore.compare.parameter_server.messages import Reply, Request, read_action, write_action
from fedcore.compare.parameter_server.shard import Shard
from fedcore.compare.parameter_server.tasks import Task
from fedcore.compare.parameter_server.transport import HEADER_BYTES, Pair, be_local, new_header
from fedcore.compare.workers import ReportSink
from fedcore.system.files import replacing

_GOODBYE_SECONDS: Final = 60.0


def run_shard(report: ReportSink, task: Task, number: int) -> None:
    """Serve one range of the model until no worker is left.

    Shard 0 reports "began" when all workers are there, "round" after each round, "lost" for a worker that is gone, and
    "finished" at the end.
    """
    be_local()
    problem = task.problem()
    engine = task.engine(problem, torch.device("cpu"))
    ranges = KeyRanges.of(engine.module, shards=task.shards)
    shard = Shard(engine.module, problem.recipe().optimizer, ranges, number)
    common: queue.SimpleQueue[Knock] = queue.SimpleQueue()
    doors = [
        Door(
            worker,
            task.worker_meeting(worker, number),
            task.seconds,
            len(ranges.ranges[number]),
            _inbox(number, common),
        )
        for worker in range(task.run.sites)
    ]
    process = ShardProcess(shard, doors, lambda server_round: task.piece(server_round, number))
    if number == 0:
        _leader(process, task, common, ranges, task.round_samples(problem), report).run()
    else:
        follow(process, Pair.join(task.shard_meeting(number), seconds=task.seconds))
    process.close()


def _inbox(number: int, common: queue.SimpleQueue[Knock]) -> queue.SimpleQueue[Knock]:
    """The leader hears all workers at once, the others each one when it is its turn."""
    return common if number == 0 else queue.SimpleQueue()


@dataclass(slots=True)
class ShardProcess:
    """What leader and followers have in common: the shard, and a door for each worker.

    piece: where to keep the shard's range of the model of a round.
    """

    shard: Shard
    doors: list[Door]
    piece: Callable[[int], Path]
    lost: set[int] = field(default_factory=set)
    _released: list[Door] = field(default_factory=list)

    def carry_out(self, action: Action, reply: Reply) -> None:
        """Do what was decided; `reply` goes to the worker that it answers."""
        match action:
            case Apply(workers, scale):
                pushes = [self.doors[worker].body for worker in workers if worker not in self.lost]
                if pushes:
                    self.shard.apply(pushes, scale)
            case Answer(worker):
                self.doors[worker].answer(self.shard.values, reply)
            case Release(worker):
                self.doors[worker].release(reply)
                self._released.append(self.doors[worker])
            case Snapshot(number):
                self._keep(self.piece(number))

    @property
    def released(self) -> int:
        """How many workers have trained to their end."""
        return len(self._released)

    def _keep(self, path: Path) -> None:
        with replacing(path) as file:
            np.save(file, self.shard.values.numpy())

    def close(self) -> None:
        """Let the last messages leave."""
        for door in self._released:
            door.join(_GOODBYE_SECONDS)


@dataclass(slots=True)
class Leader:
    """Shard 0: takes the messages in their order, asks the coordinator, and has all shards do what it says.

    bytes: of the whole model, over all shards. clock: None where messages are taken as they come.
    """

    process: ShardProcess
    coordinator: Coordinator
    followers: list[Pair]
    inbox: queue.SimpleQueue[Knock]
    report: ReportSink
    bytes: int
    clock: SimulatedClock | None
    _arrivals: Arrivals[Request] = field(init=False)
    _order: Iterator[int] = field(default_factory=count)
    _began: float = 0.0

    def __post_init__(self) -> None:
        self._arrivals = Arrivals(set(self.coordinator.clocks), conservative=self.clock is not None)

    def run(self) -> None:
        """Serve until no worker is left."""
        while not self.coordinator.over:
            knock = self.inbox.get()
            if knock.request is None:
                self._lose(knock.worker, knock.reason)
            else:
                self._arrivals.put(knock.worker, self._arrival(knock.request), knock.request)
            while (entry := self._arrivals.next()) is not None:
                self._handle(*entry)
        for pair in self.followers:
            pair.send(write_action(None, len(self.process.doors)))
        self.report("finished", self._summary())

    def _arrival(self, request: Request) -> float:
        if self.clock is None:
            return float(next(self._order))
        return self.clock.arrival(request.sent, self._size(request))

    def _size(self, request: Request) -> int:
        return HEADER_BYTES + (self.bytes if request.push is not None else 0)

    def _handle(self, arrival: float, worker: int, request: Request) -> None:
        if self.clock is not None:
            self.clock.handle(arrival, self._size(request))
        if request.push is None:
            self._do(self.coordinator.ask(worker))
        else:
            self._do(self.coordinator.push(worker, request.push))

    def _lose(self, worker: int, reason: str) -> None:
        self._arrivals.lose(worker)
        self.process.lost.add(worker)
        actions = self.coordinator.lose(worker)
        self.report("lost", {"worker": worker, "round": self.coordinator.round + 1, "reason": reason})
        self._do(actions)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            for pair in self.followers:
                pair.send(write_action(action, len(self.process.doors)))
            reply = self._reply(action)
            self.process.carry_out(action, reply)
            if isinstance(action, Answer):
                self._arrivals.away.add(action.worker)
            if isinstance(action, Snapshot):
                self._await_pieces()
                self._report_round(action.round)

    def _reply(self, action: Action) -> Reply:
        if not self._began:  # the first answer of all
            self._began = time.monotonic()
            self.report("began", {})
        if self.clock is None or not isinstance(action, Answer | Release):
            return Reply(0.0, self.coordinator.round)
        size = HEADER_BYTES + (self.bytes if isinstance(action, Answer) else 0)
        return Reply(self.clock.answer(size), self.coordinator.round)

    def _await_pieces(self) -> None:
        """A round that was reported has its model, whatever ends after that."""
        for pair in self.followers:
            pair.receive(new_header())

    def _report_round(self, number: int) -> None:
        state = self.coordinator
        self.report(
            "round",
            {
                "round": number,
                "samples": state.samples,
                "seconds": time.monotonic() - self._began,
                "simulated_seconds": None if self.clock is None else self.clock.now,
                "loss": state.loss / max(1, state.seen),
            },
        )
        state.loss, state.seen = 0.0, 0

    def _summary(self) -> Mapping[str, Any]:
        state = self.coordinator
        return {
            "clocks": {str(age): number for age, number in sorted(state.stale_clocks.items())},
            "updates": {str(age): number for age, number in sorted(state.stale_updates.items())},
            "samples": state.samples,
            "released": self.process.released,
            "steps": {str(worker): steps for worker, steps in state.steps.items()},
        }


def follow(process: ShardProcess, leader: Pair) -> None:
    """A shard that does not lead: does what it is told until the end."""
    message = torch.zeros(2 + len(process.doors), dtype=torch.float64)
    for door in process.doors:
        _await(process, door)
    while True:
        leader.receive(message)
        action = read_action(message)
        if action is None:
            return
        if isinstance(action, Apply):
            for worker in action.workers:
                _await(process, process.doors[worker])
        process.carry_out(action, Reply(0.0, 0))
        if isinstance(action, Snapshot):
            leader.send(new_header())


def _await(process: ShardProcess, door: Door) -> None:
    """Wait for a worker's message; one that was lost with half of its gradient sent has no part in this shard's sum."""
    if door.worker not in process.lost and door.inbox.get().request is None:
        process.lost.add(door.worker)


def _leader(
    process: ShardProcess,
    task: Task,
    inbox: queue.SimpleQueue[Knock],
    ranges: KeyRanges,
    round_samples: int,
    report: ReportSink,
) -> Leader:
    followers = [Pair.serve(task.shard_meeting(shard), seconds=task.seconds) for shard in range(1, task.shards)]
    coordinator = Coordinator.of(task.run.sites, bound=task.bound, together=task.together, round_samples=round_samples)
    network = task.run.network if task.simulated else None
    clock = None if network is None else SimulatedClock(network=network, shards=task.shards)
    return Leader(process, coordinator, followers, inbox, report, 4 * ranges.size, clock)
