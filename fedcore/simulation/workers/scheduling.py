"""Which worker gets which clients, so that all of them end together.

The longest work goes first (Graham 1969, SIAM J. Appl. Math. 17: no more than 4/3 of the best time), in chunks that get
smaller towards the end, as guided self-scheduling cuts them (Polychronopoulos and Kuck 1987, IEEE Trans. Computers 36).
A client goes back to the worker that had it last if that costs nothing: its data are warm there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Final

MOST_AT_ONCE: Final = 16
"""Clients in a chunk."""
_CHUNKS_LEFT: Final = 4
"""A chunk is a worker's share of what is left, cut by this."""
_LOOKED_AT: Final = 64
_ALIKE: Final = 0.8
"""Clients at the head of the queue among which a worker looks for its own, and how long they take at least, relative to
the first."""


@dataclass(slots=True)
class Costs:
    """How long clients take, learned from how long they took. Kinds are message types, which take their own time."""

    _seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    _examples: dict[int, int] = field(default_factory=dict)

    def learn(self, kind: str, client: int, seconds: float, examples: int) -> None:
        """A task took so long, with so many examples."""
        self._seconds.setdefault(kind, {})[client] = seconds
        self._examples[client] = examples

    def expected(self, kind: str, clients: Iterable[int]) -> dict[int, float]:
        """Seconds of each client: its own last ones, else by its examples, else the mean of the others; 1 at first."""
        known = self._seconds.get(kind, {})
        mean = fmean(known.values()) if known else 1.0
        examples = sum(self._examples[client] for client in known)
        rate = sum(known.values()) / examples if examples else None

        def one(client: int) -> float:
            if client in known:
                return known[client]
            return mean if rate is None or client not in self._examples else rate * self._examples[client]

        return {client: one(client) for client in clients}


@dataclass(slots=True)
class Homes:
    """Where each client worked last.

    pinned
        A client stays with one worker, whose process keeps what it needs.
    """

    workers: int
    pinned: bool = False
    _worker: dict[int, int] = field(default_factory=dict)

    def of(self, client: int) -> int | None:
        """The worker, or None for a client that any may have."""
        return client % self.workers if self.pinned else self._worker.get(client)

    def went(self, client: int, worker: int) -> None:
        """A client went to a worker."""
        self._worker[client] = worker


def cut(clients: Sequence[int], size: int, workers: int) -> list[Sequence[int]]:
    """Clients that are worked on at once, up to `size`, in groups of one length of which each worker has as many.

    Which they are depends on no clock, so that the same simulation gives the same bits.
    """
    rounds = -(-len(clients) // (max(size, 1) * workers))
    count = len(clients) if size <= 1 else min(len(clients), rounds * workers)
    borders = [len(clients) * index // max(count, 1) for index in range(count + 1)]
    return [clients[start:stop] for start, stop in pairwise(borders)]


class Queue:
    """The clients of one exchange that no worker has yet, the longest work first.

    groups: clients that go to one worker together, as a chunk of their own; without them each goes for itself.
    """

    def __init__(
        self, costs: Mapping[int, float], homes: Homes, *, groups: Sequence[Sequence[int]] | None = None
    ) -> None:
        units = [[client] for client in costs] if groups is None else groups
        self._groups = {unit[0]: unit for unit in units}
        self._costs = {unit[0]: sum(costs[client] for client in unit) for unit in units}
        self._waiting = sorted(self._costs, key=lambda first: (-self._costs[first], first))
        self._homes = homes
        self._most = 1 if any(len(unit) > 1 for unit in units) else MOST_AT_ONCE
        self._left = sum(costs.values())

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, worker: int) -> Sequence[int]:
        """The next chunk for a worker; nothing if no client is left that it may have."""
        share = self._left / (self._homes.workers * _CHUNKS_LEFT)
        chunk: list[int] = []
        while len(chunk) < self._most and (client := self._next(worker)) is not None:
            if chunk and sum(self._costs[one] for one in chunk) + self._costs[client] > share:
                break
            self._waiting.remove(client)
            chunk.append(client)
        for client in chunk:
            self._left -= self._costs[client]
            self._homes.went(client, worker)
        return [client for first in chunk for client in self._groups[first]]

    def _next(self, worker: int) -> int | None:
        """The longest of the worker's own, of nobody's, or of another's, unless those are pinned."""
        if self._homes.pinned:
            return next((client for client in self._waiting if self._homes.of(client) == worker), None)
        least = _ALIKE * self._costs[self._waiting[0]] if self._waiting else 0.0
        head = [client for client in self._waiting[:_LOOKED_AT] if self._costs[client] >= least]
        homes = [self._homes.of(client) for client in head]
        for home in (worker, None):
            if home in homes:
                return head[homes.index(home)]
        return head[0] if head else None
