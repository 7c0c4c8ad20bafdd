"""A TCP relay between clients and their server that counts bytes, and a watch over the processes on both sides.

Linux moves the bytes from socket to socket (splice(2)), so that counting costs the frameworks next to nothing. What is
counted is what travels: records of TLS with everything in them, without the headers of TCP and IP.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from fedcore.comparison.local_federation import free_port

HOST = "127.0.0.1"
_CHUNK = 1 << 20
_SAMPLE_SECONDS = 0.25


@dataclass(slots=True)
class CountingRelay:
    """Listens on a port of its own and hands everything on to `target` on this machine; use as a context manager.

    up, down: bytes from clients to the server and back.
    """

    target: int
    port: int = field(default_factory=free_port)
    up: int = 0
    down: int = 0
    _listener: socket.socket | None = None
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, self.port), backlog=128)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            # Closing alone would leave the thread waiting in accept(2).
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        """One connection; if the server does not listen yet, the relay closes it."""
        with client, contextlib.suppress(OSError), socket.create_connection((HOST, self.target)) as server:
            with self._lock:
                self._open |= {client, server}
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            upward = threading.Thread(target=self._pump, args=(client, server, "up"), daemon=True)
            upward.start()
            self._pump(server, client, "down")
            upward.join()
            with self._lock:
                self._open -= {client, server}

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        """Until the source ends: everything to the sink, which then hears of the end."""
        read, write = os.pipe()
        try:
            with contextlib.suppress(OSError):
                while count := os.splice(source.fileno(), write, _CHUNK):
                    self._count(direction, count)
                    while count:
                        count -= os.splice(read, sink.fileno(), count)
            # What comes the other way is not cut off: either side may have ended its own half alone.
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        finally:
            os.close(read)
            os.close(write)

    def _count(self, direction: str, count: int) -> None:
        with self._lock:
            if direction == "up":
                self.up += count
            else:
                self.down += count


@dataclass(slots=True)
class Watch:
    """Samples memory and the relay's counters while a run goes on; use as a context manager.

    server, client: process numbers; what they started counts with them. Memory is the proportional set size (proc(5),
    smaps_rollup): a page that several processes share counts once. server_peak, client_peak: bytes.
    """

    server: int
    client: int
    relay: CountingRelay
    server_peak: int = 0
    client_peak: int = 0
    _times: list[float] = field(default_factory=list)
    _bytes: list[tuple[int, int]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def bytes_up(self, start: float, end: float) -> int:
        """Bytes up between two times of the wall clock, to one sample."""
        return self._at(end)[0] - self._at(start)[0]

    def bytes_down(self) -> int:
        """Bytes down in all, to one sample."""
        return self._bytes[-1][1] - self._bytes[0][1]

    def _at(self, moment: float) -> tuple[int, int]:
        return self._bytes[max(0, bisect_right(self._times, moment) - 1)]

    def _sample(self) -> None:
        while True:
            self._times.append(time.time())
            self._bytes.append((self.relay.up, self.relay.down))
            self.server_peak = max(self.server_peak, proportional_bytes(self.server))
            self.client_peak = max(self.client_peak, proportional_bytes(self.client))
            if self._stop.wait(_SAMPLE_SECONDS):
                return


def proportional_bytes(pid: int) -> int:
    """What the process and all that it started hold in memory; 0 if it is gone."""
    return sum(_pss(each) for each in _tree(pid))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(psutil.Error):
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
