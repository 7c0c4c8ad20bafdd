"""JSON lines between the agent and a rank, over a socket; what user code prints goes elsewhere."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_LINE: Final = 64 << 20
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """The agent's side of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def over(cls, connection: socket.socket) -> AgentEnd:
        """Take over a connected socket."""
        return cls(*await asyncio.open_connection(sock=connection, limit=MAX_LINE))

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; raises OSError."""
        self.writer.write(json.dumps(message).encode() + b"\n")
        await self.writer.drain()

    async def receive(self) -> Line | None:
        """The next line, None at the end of the stream; raises OSError, or ValueError for what is no JSON."""
        line = await self.reader.readline()
        return _parsed(line) if line else None

    async def close(self) -> None:
        """Close the connection, which ends the rank."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return  # the other side closed it first


class RankEnd:
    """The rank's side. A thread of its own reads, so that the agent's end shows while user code runs.

    gone: called in that thread when the agent closes the connection, however it ended.
    """

    def __init__(self, connection: socket.socket, gone: Callable[[], None]) -> None:
        self._connection = connection
        self._gone = gone
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="agent", daemon=True).start()

    def receive(self) -> Line:
        """Wait for the next line."""
        return self._lines.get()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; raises OSError."""
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    self._lines.put(_parsed(line))
        finally:
            self._gone()


def _parsed(line: bytes) -> Line:
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("a line must be a JSON object")
    return message
