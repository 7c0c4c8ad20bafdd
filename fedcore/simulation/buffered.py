"""Buffered asynchrony on a virtual clock: who trains from which model, and when, and the real sums of what they made.

A queue of events in virtual time decides who is done when; the apps really train, each from the version that it was
given, and every buffer is a real secure exchange. Since what a client makes does not depend on when it is looked at,
clients that were given one version are trained together, once one of them is needed: a pool has more to do then. The
exchanges themselves, and evaluations, take no virtual time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from fedcore.flower.apps.result_cache import AppResults
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.run.buffer import WorkBook, buffer_seconds, overdue
from fedcore.simulation.devices.clock import EventQueue
from fedcore.simulation.devices.devices import Devices, Work, work_of
from fedcore.simulation.devices.distributions import Distribution, DrawnDevices
from fedcore.simulation.devices.network import round_trip_seconds
from fedcore.simulation.devices.virtual_scheduler import VirtualScheduler
from fedcore.simulation.sessions.sessions import TrainingStart
from fedcore.simulation.workers.executor import ClientExecutor
from fedcore.simulation.workers.local_failures import LocalFailures
from fedcore.state import ModelState
from fedcore.wire.tasks import Task, Version


def usual_devices(seed: int) -> Devices:
    """Devices whose work takes 1 + |N(0, 1)| times as long as its examples, drawn again for each piece of work.

    With half-normal delays FedBuff (section 5) was tested.
    """
    return Devices(DrawnDevices(vary=Distribution("halfnormal", (1.0,))), seed=seed)


class _Event(Enum):
    """What happens to a client: it is done; its work is taken back; it is done with that, and there again."""

    DONE = auto()
    LATE = auto()
    BACK = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handed:
    """A version as it was given out. task: what the apps are asked."""

    version: Version
    model: ModelState
    task: Task


@dataclass(slots=True, kw_only=True)
class AsyncClientPool:
    """The clients of a buffered run at work.

    executor
        Runs their apps.
    book
        Who trains from which version, and who is ready.
    virtual
        The clock, and the devices that decide when clients are there and how long they take.
    seed
        Draws who gets work if not all can train.
    take
        Called with everybody who takes work.
    drop
        Called with work that comes to nothing, and why.
    failures
        Whose local work failed.
    """

    executor: ClientExecutor
    book: WorkBook
    virtual: VirtualScheduler
    seed: int
    take: Callable[[Task, Version, Collection[int]], None]
    drop: Callable[[int, str], None]
    failures: LocalFailures
    up: float = field(default=0.0, init=False)
    """Bytes of an update; an estimate before the first one."""
    _results: AppResults = field(default_factory=AppResults, init=False)
    _versions: dict[int, _Handed] = field(default_factory=dict, init=False)
    _events: EventQueue[tuple[int, _Event, int]] = field(default_factory=EventQueue, init=False)
    """The client, what happens, and for which of its pieces of work."""
    _away: set[int] = field(default_factory=set, init=False)
    """Clients that are not there, or go on with work that was taken back from them."""
    _pieces: dict[int, int] = field(default_factory=dict, init=False)
    _current: dict[int, int] = field(default_factory=dict, init=False)
    """The piece of work that each client is at; what happens to an earlier one is of no account."""
    _examples: dict[int, int] = field(default_factory=dict, init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - who gets work is no secret

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self.virtual.clock.now

    @property
    def limit(self) -> float:
        """Virtual seconds after which work is taken back."""
        return self.virtual.settings.train_seconds

    def publish(self, model: ModelState, task: Task) -> None:
        """There is a new version: `model`. task: what clients are asked to do with it, by its hash."""
        for client, reason in self.book.publish(task.model_sha256).items():
            self._forget(client, reason)
        version = self.book.version
        self._versions[version.number] = _Handed(version=version, model=model, task=task)
        needed = {start.number for start in self.book.in_hand.values()} | {version.number}
        self._versions = {number: handed for number, handed in self._versions.items() if number in needed}

    def fill(self, clients: Sequence[int], before: str) -> tuple[int, ...]:
        """Whose updates make the next version, once there are enough; until then virtual time goes on.

        Raises RoundFailed if they do not come together.

        clients
            Who may be given work.
        before
            Why the attempt before gave nothing.
        """
        seconds = buffer_seconds(self.virtual.settings)
        deadline = self.now + seconds
        self._hand_out(clients)
        while not (members := self.book.buffer()):
            self.book.check_fillable(clients, before)
            if self._events.next_time > deadline:
                raise self.book.not_full(seconds)
            self._step()
            self._hand_out(clients)
        return members

    def starts(self, task: Task) -> dict[int, TrainingStart]:
        """What each update of a cohort began from, and what it counts in its sum."""
        factors = {client: factor for (client, _), factor in task.updates_of(task.cohort).items()}
        return {client: TrainingStart(model=self._of(client).model, factor=factors[client]) for client in task.cohort}

    def results(self, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """What the apps of ready clients made, in any order; trained now where nobody needed it before."""
        starts = self.book.in_hand
        for number in sorted({starts[client].number for client in clients}):
            handed = self._versions[number]
            alike = [client for client in clients if starts[client].number == number]
            if not all(self._results.has(client) for client in alike):
                # Who is not done in time has nothing to give; all others of this version are asked sooner or later.
                self._train(handed, sorted({c for c, start in starts.items() if start.number == number} - self._away))
            yield from self._results.get_or_run(alike, lambda others: ())

    def _train(self, handed: _Handed, clients: Sequence[int]) -> None:
        """Run the apps of these clients, but for those that have run."""
        run = partial(self.failures.results, self.executor, handed.task, handed.model)
        for client, result in self._results.get_or_run(clients, run):
            self._examples[client] = result.examples

    def spend(self, task: Task, clients: Sequence[int], *, opened: bool = False) -> None:
        """The updates of these clients are in a sum, or can be in no other.

        opened
            Whether that sum was opened.
        """
        if opened:
            for client in clients:
                if client not in self.failures.errors:
                    self.executor.count(self._of(client).task.server_round, [client])
        self.book.spend(task, clients)
        for client in clients:
            self._results.drop(client)
            self.failures.forget(client)

    def summed(self) -> None:
        """A sum is there, after as many trips over the network as it takes."""
        self.virtual.clock.advance_to(self.now + sum(round_trip_seconds(self.virtual.devices.network, secure=True)))

    def close(self) -> None:
        """Remove what is kept."""
        self._results.close()

    def _of(self, client: int) -> _Handed:
        return self._versions[self.book.in_hand[client].number]

    def _hand_out(self, clients: Sequence[int]) -> None:
        free = []
        for client in self.book.free(clients) if self.book.room else ():
            if client not in self._away and not self.virtual.devices.is_there(client, self.now):
                self._leave(client, self.virtual.devices.next_there(client, self.now))
            if client not in self._away:
                free.append(client)
        chosen = self._random.sample(free, min(len(free), self.book.room))
        for client in chosen:
            version = self.book.hand_out(client)
            self.take(self._of(client).task, version, [client])
            self._pieces[client] = self._current[client] = self._pieces.get(client, 0) + 1
        # How much a client has to do is known once it has done it.
        if new := [client for client in chosen if client not in self._examples]:
            self._train(self._of(new[0]), sorted(new))
        for client in chosen:
            self._plan(client)

    def _plan(self, client: int) -> None:
        """When the work that a client was given ends."""
        steps, samples = work_of(self.virtual.run_config, self._examples[client])
        down = self._of(client).model.layout.nbytes
        work, piece = Work(steps=steps, samples=samples, down=down, up=self.up), self._pieces[client]
        end, finish = self.now + self.limit, self.virtual.devices.finish_time(client, work, self.now, piece)
        if finish <= end:
            self._events.push(finish, (client, _Event.DONE, piece))
            return
        self._events.push(end, (client, _Event.LATE, piece))
        self._leave(client, max(end, finish if math.isfinite(finish) else self.virtual.devices.next_there(client, end)))

    def _leave(self, client: int, until: float) -> None:
        self._away.add(client)
        self._events.push(until, (client, _Event.BACK, 0))

    def _step(self) -> None:
        """Go on to the next event."""
        time, (client, event, piece) = self._events.pop()
        self.virtual.clock.advance_to(max(time, self.now))
        if event is _Event.BACK:
            self._away.discard(client)
        elif self._current.get(client) == piece:
            if event is _Event.DONE:
                self.book.finish(client)
            else:
                self.book.forget([client])
                self._forget(client, overdue(self.virtual.settings))

    def _forget(self, client: int, why: str) -> None:
        self._current.pop(client, None)
        self._results.drop(client)
        self.failures.forget(client)
        self.drop(client, why)
