"""Messages as JSON lines over a socket: what one of our processes says to one that runs user code.

Each side says which messages it expects, as a pydantic TypeAdapter, so that nothing else ever gets in. What user code
prints goes elsewhere, and a large thing goes as a file whose path is sent. When one side ends, however it does, the
socket closes, which the other side notices at once.
"""

from __future__ import annotations

import asyncio
import codecs
import queue
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

MAX_LINE: Final = 64 << 20
"""Bytes of a message."""
_READ_BYTES: Final = 1 << 20
LINE_CHARACTERS: Final = 2000
"""Of a line that user code prints."""
Received = TypeVar("Received")


@dataclass(frozen=True, slots=True)
class AsyncConnection(Generic[Received]):
    """The side with an event loop.

    expected: the messages that may come.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    expected: TypeAdapter[Received]

    @classmethod
    async def over(cls, connection: socket.socket, expected: TypeAdapter[Received]) -> AsyncConnection[Received]:
        """Take over a connected socket."""
        return cls(*await asyncio.open_connection(sock=connection, limit=MAX_LINE), expected)

    async def send(self, message: BaseModel) -> None:
        """Send one message; raises OSError."""
        self.writer.write(_line(message))
        await self.writer.drain()

    async def receive(self) -> Received | None:
        """The next message, None at the end of the stream; raises OSError, or ValueError for what is not expected."""
        line = await self.reader.readline()
        return self.expected.validate_json(line) if line.endswith(b"\n") else None

    def hang_up(self) -> None:
        """Close the connection without waiting, which ends a process that listens at the other end."""
        self.writer.close()

    async def close(self) -> None:
        """Close the connection; may be called again, also after a call that was cancelled."""
        self.hang_up()
        try:
            # Cancelled here, `wait_closed` would leave a cancelled future to everybody who waits after it.
            await asyncio.shield(self.writer.wait_closed())
        except OSError:
            return  # the other side closed it first


async def printed_lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """What a process prints, line by line, to its end; of a line no more than LINE_CHARACTERS."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    while chunk := await stream.read(1 << 16):
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        for line in lines:
            yield line.rstrip()[:LINE_CHARACTERS]
        rest = rest[:LINE_CHARACTERS]
    if rest:
        yield rest.rstrip()


class PolledConnection(Generic[Received]):
    """The side that waits for many at once, with `selectors`.

    Args:
        connection: the socket.
        expected: the messages that may come.
    """

    def __init__(self, connection: socket.socket, expected: TypeAdapter[Received]) -> None:
        self._connection = connection
        self._expected = expected
        self._rest = bytearray()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._connection.fileno()

    def send(self, message: BaseModel) -> None:
        """Send one message; raises OSError."""
        self._connection.sendall(_line(message))

    def receive(self) -> list[Received]:
        """The messages that have arrived whole, after a wait for some part; raises OSError at the end of the stream."""
        part = self._connection.recv(_READ_BYTES)
        if not part:
            raise ConnectionResetError
        self._rest += part
        if b"\n" not in part:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [self._expected.validate_json(line) for line in lines]

    def close(self) -> None:
        """Close the connection, which ends a process that listens at the other end."""
        self._connection.close()


class BlockingConnection(Generic[Received]):
    """The side that runs user code. A thread of its own reads, so that the other's end shows whatever that code does.

    expected: the messages that may come. gone: called in that thread when the other side has closed the connection.
    """

    def __init__(
        self, connection: socket.socket, expected: TypeAdapter[Received], *, on_close: Callable[[], object]
    ) -> None:
        self._connection = connection
        self._expected = expected
        self._on_close = on_close
        self._sending = threading.Lock()
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="connection", daemon=True).start()

    def receive(self) -> Received:
        """Wait for the next message; raises ValueError for what is not expected."""
        return self._expected.validate_json(self._lines.get())

    def send(self, message: BaseModel) -> None:
        """Send one message, from any thread; raises OSError."""
        with self._sending:
            self._connection.sendall(_line(message))

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    self._lines.put(line)
        finally:
            self._on_close()


def _line(message: BaseModel) -> bytes:
    return message.model_dump_json().encode() + b"\n"
