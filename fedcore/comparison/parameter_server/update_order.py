"""The scheduling of a parameter server, without I/O: which update comes next, and who may read.

Each worker has a clock, the number of its pushes that were applied. Under stale synchronous parallel (Ho et al. 2013)
every push is a step of the server's optimizer, and a worker at clock c may read only while c is at most s ahead of the
slowest worker that still works. s = 0 makes all wait for each other, s = infinity nobody. With `together` the pushes of
all workers at one clock are summed into one step, as in synchronous data parallel training.

All shards carry out the same list of actions, which this one object makes, so that they cannot disagree. The first
answer is given when every worker has asked: those whose process starts later lose nothing.

Messages are handled as they come, or on the clock of the network model. On the simulated clock a message carries the
time at which its worker sent it. The server handles the earliest one as soon as no worker can send an earlier one any
more: when each has a message here, or waits for an answer (a conservative discrete event simulation; Chandy and Misra
1979). Real processes then train in an order that depends on the model of the network alone, and a run can be repeated
bit for bit.

The server's link takes one message after the other, each way, at `Network.server` bits a second for each shard, since a
message is divided over the shards evenly. The optimizer's step costs no time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from fedcore.errors import UsageError
from fedcore.simulation.devices.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A worker's gradient has arrived.

    examples: that it is from.
    total: of the whole batch that its mean is over.
    loss: sum over the examples.
    last: the worker has no further batch.
    """

    examples: int
    total: int
    loss: float
    last: bool


@dataclass(frozen=True, slots=True)
class Apply:
    """Sum the gradients of these workers, multiply by `scale`, make one optimizer step."""

    workers: tuple[int, ...]
    scale: float


@dataclass(frozen=True, slots=True)
class SendModel:
    """Send a worker the model as it is now."""

    worker: int


@dataclass(frozen=True, slots=True)
class StepTaken:
    """Tell a worker that its last gradient was applied."""

    worker: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Keep the model as it is now as that of a round."""

    round: int


Action: TypeAlias = Apply | SendModel | StepTaken | Snapshot


class StalenessExceeded(UsageError):
    """A worker read a model older than the bound allows: an error in the server, which must not go on."""


@dataclass(slots=True, kw_only=True)
class UpdateOrder:
    """Which update comes next in one run.

    bound: s.
    together: sum the pushes of one clock into one step.
    round_samples: a round is over whenever as many more examples were pushed.
    clocks: of the workers that still work.
    loss: sum of the losses of the examples pushed since the last round ended.
    recent_examples: their number.
    """

    clocks: dict[int, int]
    bound: float
    together: bool
    round_samples: int
    round: int = 0
    samples: int = 0
    updates: int = 0
    loss: float = 0.0
    recent_examples: int = 0
    steps: Counter[int] = field(default_factory=Counter)
    stale_clocks: Counter[int] = field(default_factory=Counter)
    stale_updates: Counter[int] = field(default_factory=Counter)
    _began: bool = False
    _waiting: set[int] = field(default_factory=set)
    _pushed: dict[int, Push] = field(default_factory=dict)
    # Of the last read of each worker: by how much it was ahead, and how many updates had been made.
    _reads: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, workers: int, *, bound: float, together: bool, round_samples: int) -> UpdateOrder:
        """For workers 0 to `workers` - 1 at clock 0."""
        clocks = dict.fromkeys(range(workers), 0)
        return cls(clocks=clocks, bound=bound, together=together, round_samples=round_samples)

    @property
    def over(self) -> bool:
        """Whether no worker is left."""
        return not self.clocks

    def ask(self, worker: int) -> list[Action]:
        """A worker wants its first model."""
        self._waiting.add(worker)
        return self._settle()

    def push(self, worker: int, push: Push) -> list[Action]:
        """A worker's gradient arrived, and it wants the next model."""
        if worker not in self._reads or worker in self._pushed or worker in self._waiting:
            raise UsageError(f"worker {worker} pushed without having read")
        self._pushed[worker] = push
        return self._settle()

    def lose(self, worker: int) -> list[Action]:
        """A worker is gone: nobody waits for it any more, and a push that was not applied is left out."""
        self.clocks.pop(worker, None)
        self._waiting.discard(worker)
        self._pushed.pop(worker, None)
        return [*self._settle(), *self._closing()]

    def _settle(self) -> list[Action]:
        actions = self._apply() if self._ready() else []
        self._began = self._began or self._waiting >= self.clocks.keys()
        if self._began:
            actions += [self._read(worker) for worker in sorted(self._waiting) if self._may_read(worker)]
        return actions

    def _ready(self) -> bool:
        return bool(self._pushed) and (not self.together or self._pushed.keys() >= self.clocks.keys())

    def _may_read(self, worker: int) -> bool:
        return self._lead(worker) <= self.bound

    def _lead(self, worker: int) -> int:
        return self.clocks[worker] - min(self.clocks.values())

    def _read(self, worker: int) -> SendModel:
        self._waiting.remove(worker)
        self._reads[worker] = (self._lead(worker), self.updates)
        return SendModel(worker)

    def _apply(self) -> list[Action]:
        workers = tuple(sorted(self._pushed))
        pushes = [self._pushed.pop(worker) for worker in workers]
        for worker in workers:
            self._count_staleness(worker)
        self.updates += 1
        examples, total = sum(push.examples for push in pushes), pushes[0].total
        self.samples += examples
        self.recent_examples += examples
        self.loss += sum(push.loss for push in pushes)
        # A worker that was lost leaves a hole in the sum: the step is then the mean over the examples that are there.
        actions: list[Action] = [Apply(workers, total / examples if 0 < examples != total else 1.0)]
        for worker, push in zip(workers, pushes, strict=True):
            self.steps[worker] += 1
            self.clocks[worker] += 1
            if push.last:
                del self.clocks[worker]
                actions.append(StepTaken(worker))
            else:
                self._waiting.add(worker)
        while self.samples >= (self.round + 1) * self.round_samples:
            actions.append(self._snapshot())
        return [*actions, *self._closing()]

    def _count_staleness(self, worker: int) -> None:
        lead, updates = self._reads[worker]
        if lead > self.bound:
            raise StalenessExceeded(f"worker {worker} read {lead} clocks ahead; the bound is {self.bound:g}")
        self.stale_clocks[lead] += 1
        self.stale_updates[self.updates - updates] += 1

    def _closing(self) -> list[Action]:
        """The model at the end, where workers were lost and the last round stayed short."""
        return [self._snapshot()] if self.over and self.samples > self.round * self.round_samples else []

    def _snapshot(self) -> Snapshot:
        self.round += 1
        return Snapshot(self.round)


# --- the order of messages --------------------------------------------------------------------------------------------

Message = TypeVar("Message")


@dataclass(slots=True)
class SimulatedLink:
    """One direction of the server's link.

    rate: bits a second.
    free: when the last message was through.
    """

    rate: float
    free: float = 0.0

    def through(self, arrival: float, size: int) -> float:
        """When a message of `size` bytes, which alone would be here at `arrival`, is here behind the others."""
        self.free = max(arrival, self.free + size * 8 / self.rate)
        return self.free


@dataclass(slots=True, kw_only=True)
class SimulatedClock:
    """Times of one run in seconds.

    now: when the message that is being handled was here.
    """

    network: Network
    shards: int
    now: float = 0.0
    _inward: SimulatedLink = field(init=False)
    _outward: SimulatedLink = field(init=False)

    def __post_init__(self) -> None:
        rate = self.network.server * self.shards
        self._inward, self._outward = SimulatedLink(rate), SimulatedLink(rate)

    def arrival(self, sent: float, size: int) -> float:
        """When a message of `size` bytes in all would arrive if it were alone."""
        return sent + self._alone(size)

    def handle(self, arrival: float, size: int) -> None:
        """Take the next message; arrivals have to be in order."""
        self.now = max(self.now, self._inward.through(arrival, size))

    def answer(self, size: int) -> float:
        """When an answer that leaves now has reached its worker."""
        return self._outward.through(self.now + self._alone(size), size)

    def _alone(self, size: int) -> float:
        network = self.network
        return network.latency + size * 8 / min(network.bandwidth, network.server * self.shards)


@dataclass(slots=True)
class Arrivals(Generic[Message]):
    """Messages that wait for the server.

    conservative: hold the earliest back while an earlier one may come.
    away: workers that may still send one.
    """

    away: set[int]
    conservative: bool
    _heap: list[tuple[float, int, Message]] = field(default_factory=list)

    def put(self, worker: int, arrival: float, message: Message) -> None:
        """A message has come; its worker now waits. Of equal arrivals that of the lower worker is first."""
        self.away.discard(worker)
        heapq.heappush(self._heap, (arrival, worker, message))

    def lose(self, worker: int) -> None:
        """Forget a worker and what it sent."""
        self.away.discard(worker)
        self._heap = [entry for entry in self._heap if entry[1] != worker]
        heapq.heapify(self._heap)

    def next(self) -> tuple[float, int, Message] | None:
        """Arrival, worker and message; None while there is none, or an earlier one may still come."""
        if not self._heap or (self.conservative and self.away):
            return None
        return heapq.heappop(self._heap)
