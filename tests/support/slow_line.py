"""A line between a client and its server: a TCP proxy with so many bytes a second, which can pause.

While it pauses nothing gets through, the end of a connection neither, and nobody is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_PIECE = 8 * 1024
_BUFFER = 64 * 1024
"""What may wait in the proxy; the kernel's own would hold a whole model."""


@dataclass
class Direction:
    """rate: bytes a second of all connections together. passed: bytes so far."""

    rate: float
    passed: int = 0
    _free_at: float = 0.0

    async def take(self, size: int) -> None:
        """Wait for the time that the bytes take."""
        self._free_at = max(self._free_at, time.monotonic()) + size / self.rate
        self.passed += size
        await asyncio.sleep(self._free_at - time.monotonic())


@dataclass
class Line:
    """up: to the server. down: to the client."""

    server_port: int
    up: Direction
    down: Direction
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    @contextlib.contextmanager
    def to(cls, server_port: int, *, up: float, down: float, port: int = 0) -> Iterator[Line]:
        """A line that is there while the context lasts. port: where it listens, 0 for any."""
        line = cls(server_port, Direction(up), Direction(down))
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        listener.bind(("127.0.0.1", port))
        line.port = listener.getsockname()[1]
        thread = threading.Thread(target=line._run, args=(listener,), daemon=True)
        thread.start()
        try:
            yield line
        finally:
            line._loop.call_soon_threadsafe(line._loop.stop)
            thread.join()

    def pause(self) -> None:
        """From now on nothing gets through."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def go_on(self) -> None:
        """What waits gets through."""
        self._loop.call_soon_threadsafe(self._open.set)

    def _run(self, listener: socket.socket) -> None:
        asyncio.set_event_loop(self._loop)
        self._open.set()
        server = self._loop.run_until_complete(asyncio.start_server(self._carry, sock=listener, limit=_PIECE))
        self._loop.run_forever()
        server.close()
        for task in (left := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.wait(left)) if left else None
        self._loop.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the line is taken away
            await self._connected(reader, writer)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        try:
            beyond = await asyncio.open_connection("127.0.0.1", self.server_port, limit=_PIECE)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(self._pass_on(reader, beyond[1], self.up), self._pass_on(beyond[0], writer, self.down))
        finally:
            writer.close()
            beyond[1].close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while piece := await reader.read(_PIECE):
                await way.take(len(piece))
                await self._open.wait()
                writer.write(piece)
                await writer.drain()
        await self._open.wait()
        writer.close()
