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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

from pydantic import BaseModel

from fedcore import errors
from fedcore.errors import AppError, WorkerDied
from fedcore.simulation.pool_messages import FROM_WORKER, Answered, Ask, Begin, FromWorker, Made, Raised, Ready, Train

_READ_BYTES: Final = 1 << 20
_STOP_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Worker:
    """One process. chunks: the clients that it was given, chunk by chunk, less those that it has done."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    chunks: deque[deque[int]] = field(default_factory=deque)
    ready: bool = False
    _rest: bytes = b""

    @property
    def clients(self) -> list[int]:
        return [client for chunk in self.chunks for client in chunk]

    def send(self, message: BaseModel) -> None:
        try:
            self.connection.sendall(message.model_dump_json().encode() + b"\n")
        except OSError:
            raise self.died() from None

    def receive(self) -> list[FromWorker]:
        """The messages that have arrived whole; raises WorkerDied."""
        try:
            found = self.connection.recv(_READ_BYTES)
        except OSError:
            found = b""
        if not found:
            raise self.died()
        *lines, self._rest = (self._rest + found).split(b"\n")
        return [FROM_WORKER.validate_json(line) for line in lines]

    def took(self, client: int) -> None:
        """The client is done."""
        self.chunks[0].remove(client)
        if not self.chunks[0]:
            self.chunks.popleft()

    def died(self) -> WorkerDied:
        """Says of which client, and how the process ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_SECONDS)
        code = self.process.poll()
        how = f"with exit status {code}" if code is None or code >= 0 else f"by {signal.Signals(-code).name}"
        at = f"while it worked for client {self.clients[0]}" if self.clients else "while it started"
        if not self.clients and self.ready:
            at = "while it waited"
        memory = "; if the machine ran out of memory, try fewer --workers" if code == -signal.SIGKILL else ""
        return WorkerDied(f"a worker of the simulation ended {how} {at}{memory}")

    def end(self) -> None:
        """End the process and what it started."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Processes:
    """`count` processes that have been told how to begin. threads: of each, where the environment does not say."""

    def __init__(self, begin: Begin, *, count: int, threads: int) -> None:
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._pinned = False
        environment = _environment(threads)
        try:
            for number in range(count):
                worker = _start(environment)
                self._workers.append(worker)
                self._selector.register(worker.connection, selectors.EVENT_READ, number)
                worker.send(begin)
        except BaseException:
            self.close()
            raise
        outputs = [stream for worker in self._workers for stream in (worker.process.stdout, worker.process.stderr)]
        self._printing = threading.Thread(target=_print_on, args=(outputs,), name="pool-output", daemon=True)
        self._printing.start()

    def ready(self) -> bool:
        """Wait until all have loaded the app; whether it ties clients to processes. Raises what the loading raised."""
        while not all(worker.ready for worker in self._workers):
            for worker, message in self._arrived():
                if isinstance(message, Raised):
                    raise error_of(message)
                assert isinstance(message, Ready)  # noqa: S101 - a worker's first message
                worker.ready = True
                self._pinned = message.pinned
        return self._pinned

    def tell_all(self, message: BaseModel) -> None:
        """Send one message to every worker; raises WorkerDied."""
        for worker in self._workers:
            worker.send(message)

    def tell(self, worker: int, message: Train | Ask, clients: Sequence[int]) -> None:
        """Give a worker clients to work for; raises WorkerDied."""
        self._workers[worker].chunks.append(deque(clients))
        self._workers[worker].send(message)

    def chunks(self, worker: int) -> int:
        """How many chunks a worker has not ended."""
        return len(self._workers[worker].chunks)

    def results(self) -> Iterator[tuple[int, int, FromWorker]]:
        """Worker, client and what came of it, until no worker has anything to do; raises WorkerDied."""
        while any(worker.chunks for worker in self._workers):
            for worker, message in self._arrived():
                assert isinstance(message, Made | Answered | Raised)  # noqa: S101 - all are ready
                assert message.client is not None  # noqa: S101 - likewise
                worker.took(message.client)
                yield self._workers.index(worker), message.client, message

    def settle(self) -> None:
        """Wait for whatever still works, and forget what comes of it."""
        for _ in self.results():
            pass

    def close(self) -> None:
        """End all processes now; does nothing the second time."""
        for worker in self._workers:
            worker.end()
        if self._workers:
            self._printing.join(_STOP_SECONDS)
            self._selector.close()
        self._workers.clear()

    def _arrived(self) -> Iterator[tuple[_Worker, FromWorker]]:
        for key, _ in self._selector.select():
            worker = self._workers[key.data]
            for message in worker.receive():
                yield worker, message


def error_of(found: Raised) -> Exception:
    """One of our errors as it was; for any other, whose traceback was printed, one that says whose app raised it."""
    kind = getattr(errors, found.fedcore, None) if found.fedcore else None
    if kind is None:
        whose = "the app" if found.client is None else f"client {found.client}"
        return AppError(f"{whose} raised {found.line}")
    error: Exception = kind.__new__(kind)
    error.args = (found.text,)
    return error


def _start(environment: dict[str, str]) -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fedcore.simulation.pool_worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process, which then ends all
            )
        except BaseException:
            ours.close()
            raise
    return _Worker(process, ours)


def _environment(threads: int) -> dict[str, str]:
    """This process's own, with where it finds its modules; as many threads as a worker has cores."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
    return environment | ({"PYTHONDONTWRITEBYTECODE": "1"} if sys.dont_write_bytecode else {})


def _print_on(outputs: Sequence[IO[bytes] | None]) -> None:
    """Pass on what the workers print, line by line, as if it were this process's own."""
    rest: dict[int, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for place, stream in enumerate(outputs):
            assert stream is not None  # noqa: S101 - each is a pipe
            selector.register(stream, selectors.EVENT_READ, place)
        while selector.get_map():
            for key, _ in selector.select():
                found = os.read(key.fd, _READ_BYTES)
                whole, line_end, after = (rest.pop(key.data, b"") + found).rpartition(b"\n")
                rest[key.data] = after if found else b""
                target: Any = sys.stderr if key.data % 2 else sys.stdout
                text = (whole + line_end + (b"" if found else after)).decode(errors="replace")
                if text:
                    target.write(text)
                    target.flush()
                if not found:
                    selector.unregister(key.fileobj)
                    outputs[key.data].close()  # type: ignore[union-attr]
