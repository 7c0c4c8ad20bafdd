"""The worker processes of a pool, as the simulation uses them."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from fedcore.errors import WorkerDied
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.batched_clients import ignore_line
from fedcore.simulation.workers.pool_messages import (
    FROM_WORKER,
    Answered,
    AppLoaded,
    Ask,
    Begin,
    ClientRaised,
    ExchangeStart,
    FromWorker,
    Made,
    Sized,
    Train,
    WarningLine,
    WorkerEnded,
)
from fedcore.system.json_lines import PolledConnection
from fedcore.system.workers.failures import exit_description, memory_hint
from fedcore.system.workers.starting import end_worker, start_worker

_READ_BYTES: Final = 1 << 20
_STOP_SECONDS: Final = 10.0


@dataclass(slots=True)
class _PoolWorker:
    """One worker, as the simulation sees it."""

    connection: PolledConnection[FromWorker]
    chunks: deque[deque[int]] = field(default_factory=deque)
    """The clients that it has, chunk by chunk, less those that are done."""
    ready: bool = False

    @property
    def activity(self) -> str:
        """What it does."""
        for chunk in self.chunks:
            return f"while it worked for client {chunk[0]}"
        return "while it waited" if self.ready else "while it started"

    def took(self, client: int) -> None:
        """The client is done."""
        self.chunks[0].remove(client)
        if not self.chunks[0]:
            self.chunks.popleft()


class Processes:
    """`count` workers with `threads` each; the other arguments are those of `Begin`.

    `warn` is called with each warning of the workers once.
    """

    def __init__(self, app: FlowerApp, *, clients: int, states: Path, at_once: int, count: int, threads: int) -> None:
        self.warn: Callable[[str], None] = ignore_line
        self._warned: set[str] = set()
        with contextlib.ExitStack() as theirs:
            pairs = [socket.socketpair() for _ in range(count + 1)]
            ends = [theirs.enter_context(their).fileno() for _, their in pairs]
            self._control, *ours = (our for our, _ in pairs)
            begin = Begin(
                app=app.folder,
                clients=clients,
                states=states,
                at_once=at_once,
                threads=threads,
                connections=ends[1:],
                control=ends[0],
            )
            self._process = start_worker(
                "fedcore.simulation.workers.fork_server",
                begin.model_dump_json(),
                sockets=[begin.control, *begin.connections],
                environment=_environment(threads, forks=count > 1),
                output=subprocess.PIPE,
            )
        self._pinned = False
        self._workers = [_PoolWorker(PolledConnection(connection, FROM_WORKER)) for connection in ours]
        self._selector = selectors.DefaultSelector()
        for index, connection in enumerate(ours):
            self._selector.register(connection, selectors.EVENT_READ, index)
        self._printing = threading.Thread(target=_print_on, args=(self._process,), name="pool-output", daemon=True)
        self._printing.start()

    def ready(self) -> bool:
        """Wait until all have loaded the app; whether it ties clients to processes. Raises what the loading raised."""
        while not all(worker.ready for worker in self._workers):
            for index, message in self._arrived():
                if isinstance(message, ClientRaised):
                    raise message.exception()
                assert isinstance(message, AppLoaded)  # noqa: S101 - a worker's first message
                self._workers[index].ready = True
                self._pinned = message.pinned
        return self._pinned

    def begin(self, exchange: ExchangeStart) -> int:
        """Tell every worker of an exchange; how many clients they work for at a time. Raises WorkerDied."""
        for index in range(len(self._workers)):
            self._send(index, exchange)
        sizes: dict[int, int] = {}
        while len(sizes) < len(self._workers):
            for index, message in self._arrived():
                assert isinstance(message, Sized)  # noqa: S101 - the answer to ExchangeStart
                sizes[index] = message.at_once
        return min(sizes.values())

    def tell(self, index: int, message: Train | Ask, clients: Sequence[int]) -> None:
        """Give a worker clients to work for; raises WorkerDied."""
        self._workers[index].chunks.append(deque(clients))
        self._send(index, message)

    def chunks(self, index: int) -> int:
        """How many chunks a worker has left."""
        return len(self._workers[index].chunks)

    def results(self) -> Iterator[tuple[int, int, FromWorker]]:
        """Worker, client and what came of it, until no worker has anything to do; raises WorkerDied."""
        while any(worker.chunks for worker in self._workers):
            for index, message in self._arrived():
                assert isinstance(message, Made | Answered | ClientRaised)  # noqa: S101 - all are ready
                assert message.client is not None  # noqa: S101 - likewise
                self._workers[index].took(message.client)
                yield index, message.client, message

    def drain(self) -> None:
        """Wait until all workers are idle, and ignore their results."""
        for _ in self.results():
            pass

    def close(self) -> None:
        """End all processes now, and what they started; does nothing the second time."""
        end_worker(self._process)
        self._selector.close()
        self._control.close()
        for worker in self._workers:
            worker.connection.close()
        self._printing.join(_STOP_SECONDS)

    def _send(self, index: int, message: BaseModel) -> None:
        try:
            self._workers[index].connection.send(message)
        except OSError:
            raise self._died(index) from None

    def _arrived(self) -> Iterator[tuple[int, FromWorker]]:
        for key, _ in self._selector.select():
            try:
                messages = self._workers[key.data].connection.receive()
            except OSError:
                raise self._died(key.data) from None
            for message in messages:
                if isinstance(message, WarningLine):
                    self._warn_once(message.line)
                else:
                    yield key.data, message

    def _warn_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self.warn(line)

    def _died(self, index: int) -> WorkerDied:
        """The error that says how the process ended, and which client it worked for."""
        status = self._status(index)
        activity = self._workers[index].activity
        return WorkerDied(f"a worker of the simulation {exit_description(status)} {activity}{memory_hint(status)}")

    def _status(self, index: int) -> int | None:
        """The exit status of a worker that has ended, from the fork server; None if that has ended too."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if len(self._workers) == 1:
                return self._process.wait(_STOP_SECONDS)
            self._control.settimeout(_STOP_SECONDS)
            with self._control.makefile("rb") as lines:
                for line in lines:
                    ended = WorkerEnded.model_validate_json(line)
                    if ended.worker == index:
                        return ended.status
        return None


def _environment(threads: int, *, forks: bool) -> dict[str, str]:
    """Laid over this process's own.

    Threads that libraries start when they are imported would be in the way of a fork; workers have theirs afterwards.
    """
    environment = {"FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1" if forks else str(threads)}
    return environment | ({"PYTHONDONTWRITEBYTECODE": "1"} if sys.dont_write_bytecode else {})


def _print_on(process: subprocess.Popen[bytes]) -> None:
    """Pass on what the workers print, line by line, as if this process did."""
    rest = {1: b"", 2: b""}
    with selectors.DefaultSelector() as selector, process:
        for number, stream in ((1, process.stdout), (2, process.stderr)):
            assert stream is not None  # noqa: S101 - each is a pipe
            selector.register(stream, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, _READ_BYTES)
                lines, ended, rest[key.data] = (rest[key.data] + data).rpartition(b"\n")
                if not data:
                    selector.unregister(key.fileobj)
                    lines += ended + rest[key.data]
                target: Any = sys.stdout if key.data == 1 else sys.stderr
                if text := (lines + ended if data else lines).decode(errors="replace"):
                    target.write(text)
                    target.flush()
