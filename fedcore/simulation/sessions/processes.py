"""The client sessions of simulated rounds, spread over processes.

What a session does holds Python's lock for the most part, so the sessions of thousands in one process keep one core
busy. Here each process has the sessions of every n-th client of a cohort, and the sum of their masked vectors; the
server, who hears of everything, stays with the simulation.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedcore.codec import AnyEncoding
from fedcore.errors import WorkerDied
from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    ConsistencySignature,
    KeyShares,
    Outcome,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.simulation.sessions.sessions import Members, Update
from fedcore.simulation.sessions.shard import Order, Raised, SessionShard
from fedcore.state import FileSink, ModelState

_AHEAD: Final = 2
"""Orders that a process has at a time, so that it need not wait for this one."""
_FEW: Final = 32
"""Clients of an order about their shares; with 178 neighbours each it has some MB."""
_MANY: Final = 512
"""Clients of an order about something short."""
_STOP_SECONDS: Final = 10.0


class SessionProcesses:
    """`count` processes that hold sessions; a context manager, at whose end they are gone."""

    def __init__(self, count: int) -> None:
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pending = [0] * count
        for _ in range(count):
            self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._processes)

    def all(self, orders: Iterable[tuple[int, Order]]) -> Iterator[Any]:
        """What comes of orders, each to the process at a place, in any order; raises what they raise, and WorkerDied.

        Whoever stops in the middle has to `settle`.
        """
        for place, order in orders:
            while self._pending[place] >= _AHEAD:
                yield from self._arrived(None)
            self._send(place, order)
            yield from self._arrived(0)
        while any(self._pending):
            yield from self._arrived(None)

    def settle(self) -> None:
        """Wait for whatever still works, and forget what comes of it."""
        while any(self._pending):
            with contextlib.suppress(Exception):
                for _ in self._arrived(None):
                    pass

    def close(self) -> None:
        """End all processes now."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
            self._processes.append(
                subprocess.Popen(  # noqa: S603 - a module of ours
                    [sys.executable, "-P", "-m", "fedcore.simulation.sessions.worker", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, "PYTHONPATH": path},
                    start_new_session=True,  # Ctrl-C reaches this process, which then ends all
                )
            )
        self._connections.append(Connection(ours.detach()))

    def _send(self, place: int, order: Order) -> None:
        try:
            self._connections[place].send(order)
        except OSError:
            raise self._died(place) from None
        self._pending[place] += 1

    def _arrived(self, timeout: float | None) -> Iterator[Any]:
        """The answers that are there, or that come within `timeout` seconds; None for as long as it takes."""
        busy = [connection for connection, count in zip(self._connections, self._pending, strict=True) if count]
        for ready in wait(busy, timeout):
            place = self._connections.index(ready)  # type: ignore[arg-type]
            try:
                answer = self._connections[place].recv()
            except (EOFError, OSError):
                raise self._died(place) from None
            self._pending[place] -= 1
            if isinstance(answer, Raised):
                raise answer.error()
            yield answer

    def _died(self, place: int) -> WorkerDied:
        self._pending[place] = 0
        status = self._processes[place].wait(_STOP_SECONDS)
        how = f"with exit status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
        memory = "; if the machine ran out of memory, try fewer workers" if status == -signal.SIGKILL else ""
        return WorkerDied(f"a process with the secure sessions of simulated clients ended {how}{memory}")


class ProcessSessions:
    """`SecureSessions` of one round in those processes."""

    def __init__(self, members: Members, processes: SessionProcesses) -> None:
        self._processes = processes
        self._clients: list[list[int]] = [[] for _ in range(min(len(processes), len(members.identities)))]
        self._places: dict[int, int] = {}
        for number, client in enumerate(sorted(members.identities)):
            self._places[client] = number % len(self._clients)
            self._clients[self._places[client]].append(client)
        self._heard: dict[int, frozenset[int]] = {}
        self._processes.settle()  # a round that failed may have left some at work
        self._tell(_begin(members, clients) for clients in self._clients)

    def advertise(self, clients: Sequence[int]) -> Iterator[Advertisement]:
        """As `SecureSessions`."""
        yield from self._each(clients, _MANY, lambda those: partial(SessionShard.advertise, clients=those))

    def share_keys(self, clients: Sequence[int], advertised: Callable[[int], AdvertisedCohort]) -> Iterator[KeyShares]:
        """As `SecureSessions`."""
        told: list[dict[int, Advertisement]] = [{} for _ in self._clients]

        def order(those: Sequence[int]) -> Order:
            messages, known = {client: advertised(client) for client in those}, told[self._places[those[0]]]
            members = {one.client_id: one for message in messages.values() for one in message.members}
            fresh = {client: one for client, one in members.items() if known.get(client) is not one}
            known.update(fresh)
            shown = [(client, [m.client_id for m in one.members], one.proof) for client, one in messages.items()]
            return partial(SessionShard.share_keys, ids=messages[those[0]].ids, fresh=list(fresh.values()), shown=shown)

        yield from self._each(clients, _FEW, order)

    def receive_shares(self, clients: Sequence[int], delivery: Callable[[int], ShareDelivery]) -> None:
        """As `SecureSessions`."""

        def order(those: Sequence[int]) -> Order:
            return partial(SessionShard.receive_shares, deliveries=[(client, delivery(client)) for client in those])

        self._heard.update(self._each(clients, _FEW, order))

    def heard(self, client: int) -> frozenset[int]:
        """As `SecureSessions`."""
        return self._heard[client]

    def masked(
        self, encoding: AnyEncoding, updates: Iterable[Update], total: NDArray[np.uint64]
    ) -> Iterator[tuple[int, bytes]]:
        """As `SecureSessions`. The new models lie in files, as `AppResults` has them."""
        self._tell(partial(SessionShard.begin_sum, encoding=encoding) for _ in self._clients)
        with TemporaryDirectory(prefix="fedcore-simulate-") as folder:
            models = _ModelFiles(Path(folder))
            yield from self._processes.all(
                (
                    self._places[update.client],
                    _adding(update, models.path(update.start.model) if encoding.layout else None),
                )
                for update in updates
            )
        for part in self._processes.all((place, SessionShard.end_sum) for place in range(len(self._clients))):
            np.add(total, part, out=total)

    def sign_survivors(self, clients: Sequence[int], survivors: Survivors) -> Iterator[ConsistencySignature]:
        """As `SecureSessions`."""
        yield from self._each(
            clients, _MANY, lambda those: partial(SessionShard.sign_survivors, clients=those, survivors=survivors)
        )

    def outcome(self, client: int) -> Outcome:
        """As `SecureSessions`."""
        (found,) = self._processes.all([(self._places[client], partial(SessionShard.outcome, client=client))])
        assert isinstance(found, Outcome)  # noqa: S101 - the answer
        return found

    def unmask(self, clients: Sequence[int], signatures: SignatureSet) -> Iterator[UnmaskShares]:
        """As `SecureSessions`."""
        yield from self._each(
            clients, _MANY, lambda those: partial(SessionShard.unmask, clients=those, signatures=signatures)
        )

    def _each(self, clients: Sequence[int], size: int, order: Callable[[Sequence[int]], Order]) -> Iterator[Any]:
        """What comes of these clients, one by one, of orders for `size` of them in one process each."""
        for answer in self._processes.all((place, order(those)) for place, those in self._chunks(clients, size)):
            yield from answer

    def _chunks(self, clients: Sequence[int], size: int) -> Iterator[tuple[int, list[int]]]:
        wanted = set(clients)
        left = [[client for client in those if client in wanted] for those in self._clients]
        for start in range(0, max(map(len, left)), size):
            for place, those in enumerate(left):
                if chunk := those[start : start + size]:
                    yield place, chunk

    def _tell(self, orders: Iterable[Order]) -> None:
        """An order to each process, of which nothing is to come."""
        for _ in self._processes.all(enumerate(orders)):
            pass


def _begin(members: Members, clients: Sequence[int]) -> Order:
    return partial(
        SessionShard.begin,
        parameters=members.parameters,
        identities={client: members.identities[client].private_bytes_raw() for client in clients},
        roster=dict(members.roster),
        min_cohort=members.min_cohort,
        min_threshold=members.min_threshold,
    )


def _adding(update: Update, model: Path | None) -> Order:
    result = update.result
    assert result.file is not None or not result.trained  # noqa: S101 - of kept results
    return partial(
        SessionShard.add_masked,
        client=update.client,
        model=model,
        file=result.file,
        examples=result.examples,
        metrics=dict(result.metrics),
        factor=update.start.factor,
    )


class _ModelFiles:
    """Files of the models that updates began from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: list[tuple[ModelState, Path]] = []

    def path(self, model: ModelState | None) -> Path | None:
        """Where it lies, written when it is asked for first."""
        if model is None:
            return None
        for written, path in self._written:
            if written is model:
                return path
        path = self._folder / f"{len(self._written)}.safetensors"
        with FileSink(path, model.layout, durable=False) as sink:
            model.write_to(sink)
        self._written.append((model, path))
        return path
