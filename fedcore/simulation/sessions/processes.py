"""The client sessions of simulated rounds, spread over processes.

A session holds Python's lock for most of its work, so the sessions of thousands of clients in one process keep one core
busy. Here each process has the sessions of every n-th client of a cohort, and the sum of their masked vectors; the
server stays in the simulation's process. Orders and answers are JSON lines; models and sums are files.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from fedcore.simulation.sessions.sessions import MaskedUpdate, Members, Update
from fedcore.simulation.sessions.shard import CALLS, SessionShard
from fedcore.state import FileSink, ModelState
from fedcore.system.json_lines import PolledConnection
from fedcore.system.workers.failures import RaisedError, WorkerMessage, exit_description, memory_hint
from fedcore.system.workers.starting import end_worker, start_worker

_QUEUE_DEPTH: Final = 2
"""Orders that a process has at a time, so that it need not wait for this one."""
_FEW: Final = 32
"""Clients of an order about their shares; with 178 neighbours each it has some MB."""
_MANY: Final = 512
"""Clients of an order about something short."""
_STOP_SECONDS: Final = 10.0


class SessionProcesses:
    """`count` processes that hold sessions; a context manager, at whose end they are gone."""

    def __init__(self, count: int) -> None:
        self._connections: list[PolledConnection[Any]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pending = [0] * count
        self._selector = selectors.DefaultSelector()
        for index in range(count):
            self._start(index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._processes)

    def all(self, orders: Iterable[tuple[int, WorkerMessage]]) -> Iterator[Any]:
        """Send orders, each to the process of that index, and give their results in any order.

        Raises what a session raised, and WorkerDied. A caller that stops before the end has to call `drain`.
        """
        for index, order in orders:
            while self._pending[index] >= _QUEUE_DEPTH:
                yield from self._arrived(None)
            self._send(index, order)
            yield from self._arrived(0)
        while any(self._pending):
            yield from self._arrived(None)

    def drain(self) -> None:
        """Wait until all processes are idle, and ignore their results."""
        while any(self._pending):
            with contextlib.suppress(Exception):
                for _ in self._arrived(None):
                    pass

    def close(self) -> None:
        """End all processes now."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            end_worker(process)
        self._selector.close()

    def _start(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._processes.append(
                start_worker(
                    "fedcore.simulation.sessions.worker",
                    str(theirs.fileno()),
                    sockets=[theirs.fileno()],
                    environment={},
                )
            )
        self._connections.append(PolledConnection(ours, CALLS.answers))
        self._selector.register(ours, selectors.EVENT_READ, index)

    def _send(self, index: int, order: WorkerMessage) -> None:
        try:
            self._connections[index].send(order)
        except OSError:
            raise self._died(index) from None
        self._pending[index] += 1

    def _arrived(self, timeout: float | None) -> Iterator[Any]:
        """The results that have arrived, or that arrive within `timeout` seconds; None to wait for the first."""
        for key, _ in self._selector.select(timeout):
            try:
                answers = self._connections[key.data].receive()
            except OSError:
                raise self._died(key.data) from None
            self._pending[key.data] -= len(answers)
            for answer in answers:
                if isinstance(answer, RaisedError):
                    raise answer.exception()
                yield answer.value

    def _died(self, index: int) -> WorkerDied:
        self._pending[index] = 0
        status = self._processes[index].wait(_STOP_SECONDS)
        text = (
            f"a process with the secure sessions of simulated clients {exit_description(status)}{memory_hint(status)}"
        )
        return WorkerDied(text)


class ProcessSessions:
    """`SecureSessions` of one round in those processes."""

    def __init__(self, members: Members, processes: SessionProcesses) -> None:
        self._processes = processes
        self._clients: list[list[int]] = [[] for _ in range(min(len(processes), len(members.identities)))]
        self._index: dict[int, int] = {}
        for number, client in enumerate(sorted(members.identities)):
            self._index[client] = number % len(self._clients)
            self._clients[self._index[client]].append(client)
        self._verified: dict[int, frozenset[int]] = {}
        self._processes.drain()  # a round that failed may have left some at work
        self._to_each(_begin(members, clients) for clients in self._clients)

    def advertise(self, clients: Sequence[int]) -> Iterator[Advertisement]:
        """R0."""
        yield from self._chunked(clients, _MANY, lambda chunk: CALLS.order(SessionShard.advertise, clients=chunk))

    def share_keys(self, clients: Sequence[int], advertised: Callable[[int], AdvertisedCohort]) -> Iterator[KeyShares]:
        """R1; a process gets each advertisement once, although it is shown to hundreds of its clients."""
        sent: list[dict[int, Advertisement]] = [{} for _ in self._clients]

        def order(chunk: Sequence[int]) -> WorkerMessage:
            messages, known = {client: advertised(client) for client in chunk}, sent[self._index[chunk[0]]]
            members = {one.client_id: one for message in messages.values() for one in message.members}
            fresh = {client: one for client, one in members.items() if known.get(client) is not one}
            known.update(fresh)
            cohorts = [(client, [m.client_id for m in one.members], one.proof) for client, one in messages.items()]
            return CALLS.order(
                SessionShard.share_keys, ids=messages[chunk[0]].ids, fresh=list(fresh.values()), cohorts=cohorts
            )

        yield from self._chunked(clients, _FEW, order)

    def receive_shares(self, clients: Sequence[int], delivery: Callable[[int], ShareDelivery]) -> None:
        """R1."""

        def order(chunk: Sequence[int]) -> WorkerMessage:
            messages = {client: delivery(client) for client in chunk}
            return CALLS.order(
                SessionShard.receive_shares,
                sharers=messages[chunk[0]].sharers,
                deliveries=[(client, one.shares, one.pair_secrets) for client, one in messages.items()],
            )

        self._verified.update(self._chunked(clients, _FEW, order))

    def verified_peers(self, client: int) -> frozenset[int]:
        """Whose keys a client has verified; after `receive_shares`."""
        return self._verified[client]

    def masked(
        self, encoding: AnyEncoding, updates: Iterable[Update], total: NDArray[np.uint64]
    ) -> Iterator[MaskedUpdate]:
        """R2. The new models lie in files, as `AppResults` has them."""
        self._to_each(CALLS.order(SessionShard.begin_sum, encoding=encoding) for _ in self._clients)
        with TemporaryDirectory(prefix="fedcore-simulate-") as name:
            folder = Path(name)
            models = _ModelFiles(folder)
            for client, digest, raised in self._processes.all(
                (
                    self._index[update.client],
                    _adding(update, models.path(update.start.model) if encoding.layout else None),
                )
                for update in updates
            ):
                yield MaskedUpdate(client, digest, None if raised is None else raised.exception())
            files = (folder / f"{index}.sum" for index in range(len(self._clients)))
            sums = [CALLS.order(SessionShard.end_sum, file=file) for file in files]
            for file in self._processes.all(enumerate(sums)):
                np.add(total, np.fromfile(file, np.uint64), out=total)
                file.unlink()

    def sign_survivors(self, clients: Sequence[int], survivors: Survivors) -> Iterator[ConsistencySignature]:
        """R3."""
        yield from self._chunked(
            clients, _MANY, lambda chunk: CALLS.order(SessionShard.sign_survivors, clients=chunk, survivors=survivors)
        )

    def outcome(self, client: int) -> Outcome:
        """What a client has signed in R3."""
        (outcome,) = self._processes.all([(self._index[client], CALLS.order(SessionShard.outcome, client=client))])
        assert isinstance(outcome, Outcome)  # noqa: S101 - the answer
        return outcome

    def unmask(self, clients: Sequence[int], signatures: SignatureSet) -> Iterator[UnmaskShares]:
        """R4."""
        yield from self._chunked(
            clients, _MANY, lambda chunk: CALLS.order(SessionShard.unmask, clients=chunk, signatures=signatures)
        )

    def _chunked(
        self, clients: Sequence[int], size: int, order: Callable[[Sequence[int]], WorkerMessage]
    ) -> Iterator[Any]:
        """The results for these clients, one by one, from orders for up to `size` of them in one process each."""
        for answer in self._processes.all((index, order(chunk)) for index, chunk in self._chunks(clients, size)):
            yield from answer

    def _chunks(self, clients: Sequence[int], size: int) -> Iterator[tuple[int, list[int]]]:
        requested = set(clients)
        left = [[client for client in those if client in requested] for those in self._clients]
        for start in range(0, max(map(len, left)), size):
            for index, those in enumerate(left):
                if chunk := those[start : start + size]:
                    yield index, chunk

    def _to_each(self, orders: Iterable[WorkerMessage]) -> None:
        """An order to each process, which has no result."""
        for _ in self._processes.all(enumerate(orders)):
            pass


def _begin(members: Members, clients: Sequence[int]) -> WorkerMessage:
    return CALLS.order(
        SessionShard.begin,
        parameters=members.parameters,
        identities={client: members.identities[client].private_bytes_raw() for client in clients},
        roster=dict(members.roster),
        min_cohort=members.min_cohort,
        min_threshold=members.min_threshold,
    )


def _adding(update: Update, model: Path | None) -> WorkerMessage:
    result = update.result
    assert result.file is not None or not result.trained  # noqa: S101 - of kept results
    return CALLS.order(
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
