"""The process of one shard. Shard 0 leads: it alone decides, and tells the others each action in turn.

What a worker sends reaches the leader last (`worker.py`), so that every shard has a gradient before the leader decides
about it. Each shard carries the actions out in the leader's order, on its own range.
Each shard has one thread for each worker, so that a slow worker holds up nobody else.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcore.comparison.parameter_server.messages import (
    HEADER_BYTES,
    Pair,
    PushPullReply,
    PushPullRequest,
    be_local,
    new_header,
    read_action,
    write_action,
)
from fedcore.comparison.parameter_server.shard import KeyRanges, ModelShard
from fedcore.comparison.parameter_server.task import (
    Began,
    LostWorkerReport,
    RoundOver,
    ServerEnded,
    ServerTask,
    shard_name,
)
from fedcore.comparison.parameter_server.update_order import (
    Action,
    Apply,
    Arrivals,
    SendModel,
    SimulatedClock,
    Snapshot,
    StepTaken,
    UpdateOrder,
)
from fedcore.comparison.run import worker_name
from fedcore.comparison.workers.processes import ReportSink
from fedcore.system.files import replacing
from fedcore.system.peers import PeerLost

_FAREWELL_SECONDS: Final = 60.0


class Arrived(NamedTuple):
    """A worker's message, its gradient lying in `WorkerThread.body`; without a request the worker is lost."""

    worker: int
    request: PushPullRequest | None
    reason: str = ""


class _Leaving(NamedTuple):
    """What leaves next: a reply, and the model in `WorkerThread.body` unless the worker is released."""

    reply: PushPullReply
    last: bool


@dataclass(slots=True)
class WorkerThread:
    """Receives one worker's messages and sends it the replies, in its own thread.

    seconds: how long a silent worker is waited for.
    size: numbers in this shard.
    inbox: where messages are announced.
    body: float32 [size], the worker's gradient until it is answered, and the model that is sent to it from then on: the
        two are never needed at once.
    """

    worker: int
    meeting_point: Path
    seconds: float
    size: int
    inbox: queue.SimpleQueue[Arrived]
    body: Tensor = field(init=False)
    _outbox: queue.SimpleQueue[_Leaving] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.body = torch.zeros(self.size)
        self._thread = threading.Thread(target=self._run, name=f"thread {self.worker}", daemon=True)
        self._thread.start()

    def answer(self, values: Tensor, reply: PushPullReply) -> None:
        """Send the model as it is now, [size]."""
        self.body.copy_(values)
        self._outbox.put(_Leaving(reply, last=False))

    def release(self, reply: PushPullReply) -> None:
        """Tell the worker that its last gradient was applied."""
        self._outbox.put(_Leaving(reply, last=True))

    def join(self, seconds: float) -> None:
        """Wait until the last message has left."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._exchange(Pair.serve(self.meeting_point, worker_name(self.worker), seconds=self.seconds))
        except PeerLost as error:
            self.inbox.put(Arrived(self.worker, None, str(error)))

    def _exchange(self, pair: Pair) -> None:
        header = new_header()
        pair.receive(header)
        while True:
            self.inbox.put(Arrived(self.worker, PushPullRequest.read(header)))
            leaving = self._outbox.get()
            pair.send(leaving.reply.header(), None if leaving.last else self.body)
            if leaving.last:
                # It closes first: a connection that is closed here would be gone from the worker's count of bytes.
                with contextlib.suppress(PeerLost):
                    pair.receive(header)
                return
            pair.receive(header, self.body)


def run_shard(report: ReportSink, task: ServerTask, number: int) -> None:
    """Serve one range of the model until no worker is left.

    Shard 0 reports what `task.py` lists.
    """
    be_local()
    problem = task.problem()
    engine = task.engine(problem, torch.device("cpu"))
    ranges = KeyRanges.of(engine.module, shards=task.shards)
    # A first step that nobody sees: what it imports belongs to the start of the process.
    ModelShard(engine.module, problem.recipe().optimizer, ranges, number).practise()
    shard = ModelShard(engine.module, problem.recipe().optimizer, ranges, number)
    common: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
    threads = []
    for worker in range(task.run.sites):
        # The leader hears all workers at once, the others each one when it is its turn.
        inbox = common if number == 0 else queue.SimpleQueue()
        point = task.worker_meeting_point(worker, number)
        threads.append(WorkerThread(worker, point, task.seconds, len(ranges.ranges[number]), inbox))
    process = ShardProcess(shard, threads, lambda server_round: task.range_file(server_round, number))
    if number == 0:
        _leader(process, task, common, ranges, task.round_samples(problem), report).run()
    else:
        run_follower(process, Pair.join(task.shard_meeting_point(number), shard_name(0), seconds=task.seconds))
    process.close()


@dataclass(slots=True)
class ShardProcess:
    """What leader and followers have in common: the shard, and a thread for each worker.

    file: where to keep the shard's range of the model of a round.
    """

    shard: ModelShard
    threads: list[WorkerThread]
    file: Callable[[int], Path]
    lost: set[int] = field(default_factory=set)
    _released: list[WorkerThread] = field(default_factory=list)

    def perform(self, action: Action, reply: PushPullReply) -> None:
        """Do what was decided; `reply` goes to the worker that it answers."""
        match action:
            case Apply(workers, scale):
                pushes = [self.threads[worker].body for worker in workers if worker not in self.lost]
                if pushes:
                    self.shard.apply(pushes, scale)
            case SendModel(worker):
                self.threads[worker].answer(self.shard.values, reply)
            case StepTaken(worker):
                self.threads[worker].release(reply)
                self._released.append(self.threads[worker])
            case Snapshot(number):
                self._keep(self.file(number))

    @property
    def released(self) -> int:
        """How many workers have trained to their end."""
        return len(self._released)

    def _keep(self, path: Path) -> None:
        with replacing(path) as file:
            np.save(file, self.shard.values.numpy())

    def close(self) -> None:
        """Let the last messages leave."""
        for thread in self._released:
            thread.join(_FAREWELL_SECONDS)


@dataclass(slots=True)
class LeadingShard:
    """Shard 0: takes the messages in their order, asks the order, and has all shards do what it says.

    bytes: of the whole model, over all shards.
    clock: None if messages are taken as they come.
    """

    process: ShardProcess
    order: UpdateOrder
    followers: list[Pair]
    inbox: queue.SimpleQueue[Arrived]
    report: ReportSink
    bytes: int
    clock: SimulatedClock | None
    _arrivals: Arrivals[PushPullRequest] = field(init=False)
    _order: Iterator[int] = field(default_factory=count)
    _began: float = 0.0

    def __post_init__(self) -> None:
        self._arrivals = Arrivals(set(self.order.clocks), conservative=self.clock is not None)

    def run(self) -> None:
        """Serve until no worker is left."""
        while not self.order.over:
            arrived = self.inbox.get()
            if arrived.request is None:
                self._lose(arrived.worker, arrived.reason)
            else:
                self._arrivals.put(arrived.worker, self._arrival(arrived.request), arrived.request)
            while (entry := self._arrivals.next()) is not None:
                self._handle(*entry)
        for pair in self.followers:
            pair.send(write_action(None, len(self.process.threads)))
        self.report(self._end_report())

    def _arrival(self, request: PushPullRequest) -> float:
        if self.clock is None:
            return float(next(self._order))
        return self.clock.arrival(request.sent, self._size(request))

    def _size(self, request: PushPullRequest) -> int:
        return HEADER_BYTES + (self.bytes if request.push is not None else 0)

    def _handle(self, arrival: float, worker: int, request: PushPullRequest) -> None:
        if self.clock is not None:
            self.clock.handle(arrival, self._size(request))
        if request.push is None:
            self._do(self.order.ask(worker))
        else:
            self._do(self.order.push(worker, request.push))

    def _lose(self, worker: int, reason: str) -> None:
        self._arrivals.lose(worker)
        self.process.lost.add(worker)
        actions = self.order.lose(worker)
        self.report(LostWorkerReport(worker=worker, round=self.order.round + 1, reason=reason))
        self._do(actions)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            for pair in self.followers:
                pair.send(write_action(action, len(self.process.threads)))
            reply = self._reply(action)
            self.process.perform(action, reply)
            if isinstance(action, SendModel):
                self._arrivals.away.add(action.worker)
            if isinstance(action, Snapshot):
                self._await_files()
                self._report_round(action.round)

    def _reply(self, action: Action) -> PushPullReply:
        if not self._began:  # the first answer of all
            self._began = time.monotonic()
            self.report(Began())
        if self.clock is None or not isinstance(action, SendModel | StepTaken):
            return PushPullReply(0.0, self.order.round)
        size = HEADER_BYTES + (self.bytes if isinstance(action, SendModel) else 0)
        return PushPullReply(self.clock.answer(size), self.order.round)

    def _await_files(self) -> None:
        """A round that was reported has its model, whatever ends after that."""
        for pair in self.followers:
            pair.receive(new_header())

    def _report_round(self, number: int) -> None:
        state = self.order
        self.report(
            RoundOver(
                round=number,
                samples=state.samples,
                steps=sum(state.steps.values()) / len(self.process.threads),
                seconds=time.monotonic() - self._began,
                simulated_seconds=None if self.clock is None else self.clock.now,
                loss=state.loss / max(1, state.recent_examples),
            )
        )
        state.loss, state.recent_examples = 0.0, 0

    def _end_report(self) -> ServerEnded:
        state = self.order
        return ServerEnded(
            clocks=dict(sorted(state.stale_clocks.items())),
            updates=dict(sorted(state.stale_updates.items())),
            samples=state.samples,
            released=self.process.released,
            steps=dict(state.steps),
        )


def run_follower(process: ShardProcess, leader: Pair) -> None:
    """A shard that does not lead: does what it is told until the end."""
    message = torch.zeros(2 + len(process.threads), dtype=torch.float64)
    for thread in process.threads:
        _await(process, thread)
    while True:
        leader.receive(message)
        action = read_action(message)
        if action is None:
            return
        if isinstance(action, Apply):
            for worker in action.workers:
                _await(process, process.threads[worker])
        process.perform(action, PushPullReply(0.0, 0))
        if isinstance(action, Snapshot):
            leader.send(new_header())


def _await(process: ShardProcess, thread: WorkerThread) -> None:
    """Wait for a worker's message; one that was lost with half of its gradient sent has no part in this shard's sum."""
    if thread.worker not in process.lost and thread.inbox.get().request is None:
        process.lost.add(thread.worker)


def _leader(
    process: ShardProcess,
    task: ServerTask,
    inbox: queue.SimpleQueue[Arrived],
    ranges: KeyRanges,
    round_samples: int,
    report: ReportSink,
) -> LeadingShard:
    followers = [
        Pair.serve(task.shard_meeting_point(shard), shard_name(shard), seconds=task.seconds)
        for shard in range(1, task.shards)
    ]
    order = UpdateOrder.of(
        task.run.sites, bound=task.mode.bound(task.run), together=task.mode.together, round_samples=round_samples
    )
    network = task.run.network if task.simulated else None
    clock = None if network is None else SimulatedClock(network=network, shards=task.shards)
    return LeadingShard(process, order, followers, inbox, report, 4 * ranges.size, clock)
