"""Lines of a bandwidth between clients and a server on this machine, some of which are cut during transfers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_PIECE: Final = 1 << 16
_BUFFER: Final = 1 << 18
"""Bytes of the sockets' buffers: what lies there when a line is cut was sent for nothing."""


class CutLine:
    """Passes on what comes for a port; each direction has the bandwidth, and is cut where so many bytes have passed."""

    def __init__(self, port: int, *, bandwidth: float, cuts: Sequence[int] = ()) -> None:
        """Listen on a port of its own, until `close`.

        Args:
            port: of the server.
            bandwidth: bytes a second.
            cuts: after how many bytes, in each direction by itself.
        """
        self.passed = {"up": 0, "down": 0}
        self._target, self._bandwidth = port, bandwidth
        self._cuts = {"up": sorted(cuts), "down": sorted(cuts)}
        self._lock, self._open = threading.Lock(), set[socket.socket]()
        self._free = {"up": 0.0, "down": 0.0}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End it, with all connections."""
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all connections with RST."""
        with self._lock:
            while self._open:
                one = self._open.pop()
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for one in (near, far):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                with self._lock:
                    self._open |= {near, far}
                for source, target, way in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(target=self._pass_on, args=(source, target, way), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                time.sleep(max(0.0, self._turn(way, len(piece)) - time.monotonic()))
                target.sendall(piece)
                if self._is_due(way):
                    self.cut()
            target.shutdown(socket.SHUT_WR)

    def _turn(self, way: str, size: int) -> float:
        """When the line has carried so many bytes more."""
        with self._lock:
            self.passed[way] += size
            self._free[way] = max(self._free[way], time.monotonic()) + size / self._bandwidth
            return self._free[way]

    def _is_due(self, way: str) -> bool:
        with self._lock:
            due = bool(self._cuts[way]) and self.passed[way] >= self._cuts[way][0]
            if due:
                self._cuts[way].pop(0)
            return due


@contextlib.contextmanager
def lines_of(
    kits: Sequence[Path], port: int, *, bandwidth: float, cuts: Sequence[Sequence[int]]
) -> Iterator[list[CutLine]]:
    """A line from each client to the server, which the kits then name in its place."""
    lines = []
    try:
        for kit, own in zip(kits, cuts, strict=True):
            line = CutLine(port, bandwidth=bandwidth, cuts=own)
            lines.append(line)
            path = kit / "client.toml"
            path.write_text(path.read_text(encoding="utf-8").replace(f":{port}", f":{line.port}"), encoding="utf-8")
        yield lines
    finally:
        for line in lines:
            line.close()
