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

The classes here decide who gets work and whose updates are summed; they have no clock and do nothing themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from fedcore.errors import ConfigurationError, UsageError
from fedcore.run.quorum import quorum_for
from fedcore.run.requirements import min_secure_cohort
from fedcore.run.settings import JobSettings
from fedcore.wire.tasks import Buffer, Version


@dataclass(slots=True, kw_only=True)
class WorkBook:
    """Which client trains from which version, and who is ready.

    size: of a buffer. concurrency: most clients that train at once. max_staleness: of an update that is used. spent: by
    client, the number of the last version from which an update of its went into a sum that was named, or came to
    nothing. The versions have the numbers 0, 1, ...; a client has one piece of work at a time, or one update that is in
    no sum yet.
    """

    size: int
    concurrency: int
    max_staleness: int
    spent: dict[int, int] = field(default_factory=dict)
    _versions: list[Version] = field(default_factory=list, init=False)
    _training: dict[int, Version] = field(default_factory=dict, init=False)
    _ready: dict[int, Version] = field(default_factory=dict, init=False)

    @property
    def newest(self) -> Version | None:
        """The newest version; None before there is one."""
        return self._versions[-1] if self._versions else None

    def publish(self, sha256: str) -> list[int]:
        """Make the next version; returns the clients whose work or update is now too old, and which are free again."""
        number = len(self._versions)
        self._versions.append(Version(number=number, sha256=sha256))
        old = [client for client, start in self.in_hand.items() if number - start.number > self.max_staleness]
        self.forget(old)
        return old

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
        held, number = self.in_hand, self.newest.number
        return [client for client in clients if client not in held and self.spent.get(client, -1) < number]

    def can_fill(self, clients: Iterable[int]) -> bool:
        """Whether enough of `clients` have something in hand for a buffer, or may be given the newest version."""
        clients = frozenset(clients)
        return len(clients & self.in_hand.keys()) + len(self.free(clients)) >= self.size

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

        It counts where that version was given out in this run, is not too old, and no update from it was in a sum.
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

    def buffer(self, there: Collection[int] | None = None) -> tuple[int, ...]:
        """Whose updates make the next version; empty while there are too few. there: who can be asked; None for all."""
        ready = [client for client in self._ready if there is None or client in there]
        return tuple(ready[: self.size]) if len(ready) >= self.size else ()

    def starts(self, cohort: Sequence[int]) -> Buffer:
        """What the task of their sum says of a cohort of ready clients."""
        return Buffer(newest=self.version.number, starts=[self._ready[client] for client in cohort])

    def spend(self, clients: Iterable[int]) -> None:
        """The updates of these clients are in a sum whose survivors were named, and will be in no other one."""
        for client in clients:
            self.spent[client] = self._ready.pop(client).number


def staleness_metrics(staleness: Collection[int]) -> dict[str, float]:
    """The ages of a buffer's updates, as a strategy gets them with the metrics of the clients."""
    if not staleness:
        return {}
    return {"staleness_mean": sum(staleness) / len(staleness), "staleness_max": float(max(staleness))}


def buffer_size(settings: JobSettings, members: int, min_cohort: int) -> int:
    """How many updates make a new model; raises ConfigurationError for fewer than a sum may be made of.

    members, min_cohort: as in `fedcore.run.requirements`.
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
