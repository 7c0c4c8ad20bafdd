"""In which order the server handles messages, and when: as they come, or on the clock of the network model.

On the simulated clock a message carries the time at which its worker sent it. The server handles the earliest one as
soon as no worker can send an earlier one any more: when each has a message here, or waits for an answer (a conservative
discrete event simulation; Chandy and Misra 1979). Real processes then train in an order that depends on the model of
the network alone, and a run can be repeated bit for bit.

The server's link takes one message after the other, each way, at `Network.server` bits a second for each shard, since a
message is divided over the shards evenly. The optimizer's step costs no time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fedcore.compare.network import Network

Message = TypeVar("Message")


@dataclass(slots=True)
class Link:
    """One direction of the server's link. rate: bits a second. free: when the last message was through."""

    rate: float
    free: float = 0.0

    def through(self, arrival: float, size: int) -> float:
        """When a message of `size` bytes, which alone would be here at `arrival`, is here behind the others."""
        self.free = max(arrival, self.free + size * 8 / self.rate)
        return self.free


@dataclass(slots=True, kw_only=True)
class SimulatedClock:
    """Times of one run in seconds. now: when the message that is being handled was here."""

    network: Network
    shards: int
    now: float = 0.0
    _inward: Link = field(init=False)
    _outward: Link = field(init=False)

    def __post_init__(self) -> None:
        rate = self.network.server * self.shards
        self._inward, self._outward = Link(rate), Link(rate)

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
    """Messages that wait for the server. conservative: hold the earliest back while an earlier one may come.

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
