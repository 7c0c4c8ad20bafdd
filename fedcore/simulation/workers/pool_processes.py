"""The processes of a pool: started, spoken to, and ended."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
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

from fedcore import errors
from fedcore.errors import AppError, WorkerDied
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.batched_clients import ignore_line
from fedcore.simulation.workers.pool_messages import (
    FROM_WORKER,
    Answered,
    Ask,
    Begin,
    Ended,
    Exchange,
    FromWorker,
    Made,
    Raised,
    Ready,
    Sized,
    Told,
    Train,
)

_READ_BYTES: Final = 1 << 20
_STOP_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Worker:
    """The connection to one process. chunks: the clients that it has, chunk by chunk, less those that it has done."""

    connection: socket.socket
    chunks: deque[deque[int]] = field(default_factory=deque)
    ready: bool = False
    _rest: bytes = b""

    @property
    def place(self) -> str:
        """Where its process is."""
        for chunk in self.chunks:
            return f"while it worked for client {chunk[0]}"
        return "while it waited" if self.ready else "while it started"

    def send(self, message: BaseModel) -> None:
        """Send a message; raises OSError."""
        self.connection.sendall(message.model_dump_json().encode() + b"\n")

    def receive(self) -> list[FromWorker]:
        """The messages that have arrived whole; raises OSError at the end of the stream."""
        found = self.connection.recv(_READ_BYTES)
        if not found:
            raise ConnectionResetError
        *lines, self._rest = (self._rest + found).split(b"\n")
        return [FROM_WORKER.validate_json(line) for line in lines]

    def took(self, client: int) -> None:
        """The client is done."""
        self.chunks[0].remove(client)
        if not self.chunks[0]:
            self.chunks.popleft()


class Processes:
    """`count` workers with `threads` each. app, clients, states, at_once: as `Begin` has them.

    warn: is told what workers want to be known, each line once.
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
                clientapp=app.clientapp,
                clients=clients,
                states=states,
                at_once=at_once,
                threads=threads,
                connections=ends[1:],
                control=ends[0],
            )
            self._process = _started(begin, _environment(threads, forks=count > 1))
        self._pinned = False
        self._workers = [_Worker(connection) for connection in ours]
        self._selector = selectors.DefaultSelector()
        for place, connection in enumerate(ours):
            self._selector.register(connection, selectors.EVENT_READ, place)
        self._printing = threading.Thread(target=_print_on, args=(self._process,), name="pool-output", daemon=True)
        self._printing.start()

    def ready(self) -> bool:
        """Wait until all have loaded the app; whether it ties clients to processes. Raises what the loading raised."""
        while not all(worker.ready for worker in self._workers):
            for place, message in self._arrived():
                if isinstance(message, Raised):
                    raise error_of(message)
                assert isinstance(message, Ready)  # noqa: S101 - a worker's first message
                self._workers[place].ready = True
                self._pinned = message.pinned
        return self._pinned

    def begin(self, exchange: Exchange) -> int:
        """Tell every worker of an exchange; how many clients they work for at a time. Raises WorkerDied."""
        for place in range(len(self._workers)):
            self._send(place, exchange)
        sizes: dict[int, int] = {}
        while len(sizes) < len(self._workers):
            for place, message in self._arrived():
                assert isinstance(message, Sized)  # noqa: S101 - the answer to Exchange
                sizes[place] = message.at_once
        return min(sizes.values())

    def tell(self, place: int, message: Train | Ask, clients: Sequence[int]) -> None:
        """Give a worker clients to work for; raises WorkerDied."""
        self._workers[place].chunks.append(deque(clients))
        self._send(place, message)

    def chunks(self, place: int) -> int:
        """How many chunks a worker has not ended."""
        return len(self._workers[place].chunks)

    def results(self) -> Iterator[tuple[int, int, FromWorker]]:
        """Worker, client and what came of it, until no worker has anything to do; raises WorkerDied."""
        while any(worker.chunks for worker in self._workers):
            for place, message in self._arrived():
                assert isinstance(message, Made | Answered | Raised)  # noqa: S101 - all are ready
                assert message.client is not None  # noqa: S101 - likewise
                self._workers[place].took(message.client)
                yield place, message.client, message

    def settle(self) -> None:
        """Wait for whatever still works, and forget what comes of it."""
        for _ in self.results():
            pass

    def close(self) -> None:
        """End all processes now, and what they started; does nothing the second time."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._selector.close()
        for connection in (self._control, *(worker.connection for worker in self._workers)):
            connection.close()
        self._printing.join(_STOP_SECONDS)

    def _send(self, place: int, message: BaseModel) -> None:
        try:
            self._workers[place].send(message)
        except OSError:
            raise self._died(place) from None

    def _arrived(self) -> Iterator[tuple[int, FromWorker]]:
        for key, _ in self._selector.select():
            try:
                messages = self._workers[key.data].receive()
            except OSError:
                raise self._died(key.data) from None
            for message in messages:
                if isinstance(message, Told):
                    self._warn_once(message.line)
                else:
                    yield key.data, message

    def _warn_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self.warn(line)

    def _died(self, place: int) -> WorkerDied:
        """Says how the process ended, and for whom it worked."""
        status = self._status(place)
        how = f"with exit status {status}" if status is None or status >= 0 else f"by {signal.Signals(-status).name}"
        memory = "; if the machine ran out of memory, try fewer workers" if status == -signal.SIGKILL else ""
        return WorkerDied(f"a worker of the simulation ended {how} {self._workers[place].place}{memory}")

    def _status(self, place: int) -> int | None:
        """The exit status of a worker that has ended, as whoever started it tells; None where that is gone, too."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if len(self._workers) == 1:
                return self._process.wait(_STOP_SECONDS)
            self._control.settimeout(_STOP_SECONDS)
            with self._control.makefile("rb") as lines:
                for line in lines:
                    ended = Ended.model_validate_json(line)
                    if ended.worker == place:
                        return ended.status
        return None


def error_of(found: Raised) -> Exception:
    """One of our errors as it was; for any other, whose traceback was printed, one that says whose app raised it."""
    kind = getattr(errors, found.fedcore, None) if found.fedcore else None
    if kind is None:
        whose = "the app" if found.client is None else f"the app of client {found.client}"
        return AppError(f"{whose} raised {found.line}")
    error: Exception = kind.__new__(kind)
    error.args = (found.text,)
    return error


def _started(begin: Begin, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - a module of ours
        [sys.executable, "-P", "-m", "fedcore.simulation.workers.fork_server", begin.model_dump_json()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(begin.control, *begin.connections),
        env=environment,
        start_new_session=True,  # Ctrl-C reaches this process, which then ends all
    )


def _environment(threads: int, *, forks: bool) -> dict[str, str]:
    """This process's own, and where it finds its modules.

    Threads that libraries start when they are imported would be in the way of a fork; workers have theirs afterwards.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
    environment["OMP_NUM_THREADS"] = "1" if forks else str(threads)
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
                found = os.read(key.fd, _READ_BYTES)
                whole, ended, rest[key.data] = (rest[key.data] + found).rpartition(b"\n")
                if not found:
                    selector.unregister(key.fileobj)
                    whole += ended + rest[key.data]
                target: Any = sys.stdout if key.data == 1 else sys.stderr
                if text := (whole + ended if found else whole).decode(errors="replace"):
                    target.write(text)
                    target.flush()
