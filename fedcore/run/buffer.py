"""Buffered asynchrony: training and aggregation come apart, so that no new model waits for the slowest client.

FedBuff (Nguyen et al. 2022, arXiv 2106.06639, algorithm 1): clients train from the newest model there is when they have
time. What they make is kept until K clients have something; the mean of their updates, each scaled by how many models
came in between, is one step of the server, and makes the next model. K, the size of the buffer, is small compared with
the number of clients that train at once, so a model is made whenever the K fastest are done.

Here the server cannot keep updates, since it never sees one: each client keeps its own, says that it has one and what
it began from, neither of which depends on its data, and the server makes a secure sum of K clients that are ready (as
Huba et al. 2022, arXiv 2111.04877, section 6, in an enclave). That sum is an ordinary exchange. Its task names for each
client the version that it trained from; every client finds its own entry, scales its update by the public factor, and
puts it into one sum, ever (docs/asynchrony.md).

The classes here decide who gets work, whose updates are summed, and when an update counts no more; they have no clock
and do nothing themselves. The server and the simulator ask them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from fedcore.errors import ConfigurationError, RoundFailed, UsageError
from fedcore.run.exchange import ExchangeRequest
from fedcore.run.quorum import quorum_for
from fedcore.run.requirements import min_secure_cohort
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.wire.tasks import Buffer, Task, Version

STAYED_CLOSED: Final = "its update was in a sum that stayed closed, and can be in no other"
"""Why the update of a client comes to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyUpdates:
    """Updates, made before, that an attempt sums.

    cohort
        Whose they are, ascending.
    buffer
        What each of them began from.
    all_survive
        Whether all of these clients have to survive.
    """

    cohort: Sequence[int]
    buffer: Buffer
    all_survive: bool = False


@dataclass(slots=True)
class NamedUpdates:
    """Updates in a sum whose survivors were named, and that stayed closed.

    Their clients may have signed that sum, so they can be in the very same sum, which is asked for again once, or in
    none.
    """

    _task: Task | None = field(default=None, init=False)
    _clients: tuple[int, ...] = field(default=(), init=False)

    def ready(self) -> ReadyUpdates | None:
        """The very same sum, to be asked for again; None if there is none."""
        if self._task is None or self._task.buffer is None:
            return None
        starts = starts_of(self._task, self._clients)
        buffer = Buffer(newest=self._task.buffer.newest, starts=list(starts.values()))
        return ReadyUpdates(cohort=self._clients, buffer=buffer, all_survive=True)

    def note_failure(self, task: Task, survivors: Sequence[int], *, again: bool, repeated: bool) -> tuple[int, ...]:
        """Take an attempt that gave no sum; returns the clients whose updates come to nothing by that.

        survivors
            Who was named in it.
        again
            Whether another attempt follows.
        repeated
            Whether that asks the very same clients for the very same sum, however often (`Attempts.same`).
        """
        named = tuple(sorted(survivors))
        lost = () if again and repeated else self._clients
        if not again:
            lost = lost or named
        self._task, self._clients = (task, named) if named and not lost else (None, ())
        return lost


@dataclass(slots=True, kw_only=True)
class WorkBook:
    """Which client trains from which version, and who is ready.

    The versions have the numbers 0, 1, ...; a client has one piece of work at a time, or one update that is in no sum
    yet.

    size
        Of a buffer.
    concurrency
        Most clients that train at once.
    max_staleness
        Of an update that is used.
    spent
        By client, the number of the last version from which an update of its went into a sum that was named, or came
        to nothing.
    """

    size: int
    concurrency: int
    max_staleness: int
    spent: dict[int, int] = field(default_factory=dict)
    _versions: list[Version] = field(default_factory=list, init=False)
    _training: dict[int, Version] = field(default_factory=dict, init=False)
    _ready: dict[int, Version] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, settings: JobSettings, members: int, min_cohort: int, spent: dict[int, int]) -> Self:
        """That of a run that begins, or goes on; raises ConfigurationError if no buffer could be filled, or be summed.

        members, min_cohort
            As in `fedcore.run.requirements`.
        spent
            Of the run's state.
        """
        return cls(
            size=buffer_size(settings, members, min_cohort),
            concurrency=settings.concurrency or members,
            max_staleness=settings.max_staleness,
            spent=spent,
        )

    @property
    def newest(self) -> Version | None:
        """The newest version; None before there is one."""
        return self._versions[-1] if self._versions else None

    def publish(self, sha256: str) -> dict[int, str]:
        """Make the next version; returns whose work or update is now too old, and why in words."""
        number = len(self._versions)
        self._versions.append(Version(number=number, sha256=sha256))
        ages = {client: number - start.number for client, start in self.in_hand.items()}
        old = {client: age for client, age in ages.items() if age > self.max_staleness}
        self.forget(old)
        return {
            client: f"its work began {age} versions ago, max-staleness is {self.max_staleness}"
            for client, age in old.items()
        }

    @property
    def version(self) -> Version:
        """The newest version; raises UsageError before there is one."""
        if self.newest is None:
            raise UsageError("there is no version yet")
        return self.newest

    @property
    def in_hand(self) -> dict[int, Version]:
        """What each client's work or update began from, for all that have one."""
        return {**self._ready, **self._training}

    @property
    def training(self) -> int:
        """How many clients train."""
        return len(self._training)

    @property
    def training_clients(self) -> tuple[int, ...]:
        """Those that train; who was given its work first comes first."""
        return tuple(self._training)

    def trains_from(self, client: int) -> Version | None:
        """What a client trains from; None if it does not train."""
        return self._training.get(client)

    @property
    def ready(self) -> tuple[int, ...]:
        """Clients with an update that is in no sum yet; who has waited longest comes first."""
        return tuple(self._ready)

    def free(self, clients: Iterable[int]) -> list[int]:
        """Those of `clients` that may be given the newest version."""
        if self.newest is None:
            return []
        in_hand, number = self.in_hand, self.newest.number
        return [client for client in clients if client not in in_hand and self.spent.get(client, -1) < number]

    def check_fillable(self, clients: Iterable[int], before: str) -> None:
        """Raise RoundFailed unless enough of `clients` have work or an update for a buffer, or may be given work.

        before
            Why the attempt before gave nothing; "" before the first one.
        """
        clients = frozenset(clients)
        if len(clients & self.in_hand.keys()) + len(self.free(clients)) < self.size:
            raise RoundFailed(
                f"no buffer of {self.size} updates can be filled any more: too many clients have given theirs from "
                "this model to a sum that stayed closed, or gave up" + (f". Before: {before}" if before else ""),
                check="buffer-not-fillable",
            )

    @property
    def room(self) -> int:
        """How many clients more may train."""
        return max(0, self.concurrency - len(self._training))

    def hand_out(self, client: int) -> Version:
        """A client begins to train from the newest version."""
        if not self.room or client not in self.free([client]):
            raise UsageError(f"client {client} cannot be given work now")
        self._training[client] = self.version
        return self.version

    def finish(self, client: int) -> None:
        """A client has made its update."""
        self._ready[client] = self._training.pop(client)

    def take_back(self, client: int, start: Version, *, ready: bool) -> bool:
        """A client of which nothing was known here says that it has work in hand, or an update; whether that counts.

        It counts if that version was given out in this run, is not too old, and no update from it was in a sum.
        """
        known = start.number < len(self._versions) and self._versions[start.number] == start
        fresh = known and self.version.number - start.number <= self.max_staleness
        if client in self.in_hand or not fresh or self.spent.get(client, -1) >= start.number:
            return False
        (self._ready if ready else self._training)[client] = start
        return True

    def give_up(self, client: int) -> None:
        """A client's work came to nothing, and would again: it does not get the same version again."""
        if (start := self.in_hand.get(client)) is not None:
            self.spent[client] = start.number
        self.forget([client])

    def forget(self, clients: Collection[int]) -> None:
        """Work and updates that come to nothing."""
        for client in clients:
            self._training.pop(client, None)
            self._ready.pop(client, None)

    def buffer(self, present: Collection[int] | None = None) -> tuple[int, ...]:
        """Whose updates make the next version; empty while there are too few.

        present
            Who can be asked; None for all.
        """
        ready = [client for client in self._ready if present is None or client in present]
        return tuple(ready[: self.size]) if len(ready) >= self.size else ()

    def ready_updates(self, clients: Iterable[int], *, all_survive: bool = False) -> ReadyUpdates:
        """What the task of their sum says of ready clients.

        all_survive
            Whether all of them have to survive.
        """
        cohort = sorted(clients)
        buffer = Buffer(newest=self.version.number, starts=[self._ready[client] for client in cohort])
        return ReadyUpdates(cohort=cohort, buffer=buffer, all_survive=all_survive)

    def spend(self, task: Task, clients: Collection[int]) -> None:
        """The updates of these clients are in the sum of `task`, and will be in no other one."""
        self.forget(clients)
        self.spent.update({client: start.number for client, start in starts_of(task, clients).items()})

    def not_full(self, seconds: float) -> RoundFailed:
        """What is raised if no buffer is full after so many seconds."""
        return RoundFailed(
            f"{len(self.ready)} of the {self.size} updates of a buffer were there after {seconds:g} s "
            f"(train-seconds and join-seconds), {self.training} clients train. Lower buffer-size, let more "
            "clients train at once (concurrency), or wait longer",
            check="buffer-not-full",
        )


def starts_of(task: Task, clients: Iterable[int]) -> dict[int, Version]:
    """What the updates of these clients in a buffered sum began from; empty for any other task."""
    if task.buffer is None:
        return {}
    starts = dict(zip(task.cohort, task.buffer.starts, strict=True))
    return {client: starts[client] for client in clients}


def model_of(request: ExchangeRequest) -> ModelState:
    """The model that a training makes the newest version; raises RoundFailed if it names none."""
    if request.model is None:
        raise RoundFailed(
            'a training names no model, and asynchrony = "buffered" sums changes of one', check="training-without-model"
        )
    return request.model


def buffer_seconds(settings: JobSettings) -> float:
    """For how long a run waits until a buffer is full."""
    return settings.train_seconds + settings.join_seconds


def overdue(settings: JobSettings) -> str:
    """Why the work of a client that takes too long is taken back."""
    return f"its work was not done after {settings.train_seconds:g} s (train-seconds)"


def staleness_metrics(staleness: Collection[int]) -> dict[str, float]:
    """The ages of a buffer's updates, as a strategy gets them with the metrics of the clients."""
    if not staleness:
        return {}
    return {"staleness_mean": sum(staleness) / len(staleness), "staleness_max": float(max(staleness))}


def buffer_size(settings: JobSettings, members: int, min_cohort: int) -> int:
    """How many updates make a new model; raises ConfigurationError for fewer than a sum may be made of.

    members, min_cohort
        As in `fedcore.run.requirements`.
    """
    least = max(2, min_secure_cohort(settings, members, min_cohort), settings.quorum)
    size = settings.buffer_size or least
    if size < least:
        raise ConfigurationError(
            f"buffer-size is {size}, but a sum needs {least} clients: min-cohort {min_cohort} of the clients' "
            "policies, and those that may collude, and the run's quorum. Of fewer it would show single updates",
            check="buffer-below-minimum",
        )
    if size > members:
        raise ConfigurationError(
            f"buffer-size is {size}, the federation has {members} clients, each with one update at a time: no buffer "
            "would ever be full",
            check="buffer-above-clients",
        )
    if quorum_for(settings, size, min_cohort, members) > size:
        raise ConfigurationError(
            f"buffer-size = {size} is too small for a sum that withstands the clients that may collude; set it to "
            f"{size + 1} or more"
        )
    return size
