"""Long bodies, which bypass the HTTP parser: decrypted bytes go straight into the blocks that are written to disk.

httptools has nothing to say about a body of known length, but on its way through it each record of 16 KiB was allocated
by uvloop with 256 KiB, joined with others and copied twice. So while a long body arrives another protocol holds the
connection, one of those that asyncio hands a buffer to fill (`asyncio.BufferedProtocol`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

BLOCK_BYTES: Final = 512 * 1024
LEAST_BYTES: Final = 128 * 1024
"""A shorter rest of a body is not worth the change."""
_HAND_OVER_SECONDS: Final = 1.0
"""After so long a block is handed on although it is not full: who sends slowly makes progress anyway."""


class ConnectionProtocol(Protocol):
    """The protocol that has the connection otherwise."""

    def connection_lost(self, exc: Exception | None, /) -> None:
        """The connection ended."""

    def eof_received(self) -> None:
        """The peer sends no more."""

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is answered."""

    def resume_writing(self) -> None:
        """It has caught up."""


class LongBody(asyncio.BufferedProtocol):
    """Receives the next `size` bytes and not one more.

    protocol
        The protocol that the connection had, and gets back.
    size
        Bytes that are left of the body.
    take
        Gets each block, to keep, and whether it is the last one. It stops the reading until it wants more.
    clock
        Seconds.
    """

    def __init__(
        self,
        protocol: ConnectionProtocol,
        size: int,
        take: Callable[[memoryview, bool], None],
        clock: Callable[[], float],
    ) -> None:
        self._protocol = protocol
        self._left = size
        self._take = take
        self._clock = clock
        self._block = memoryview(b"")
        self._filled = 0
        self._began = 0.0

    def get_buffer(self, sizehint: int) -> memoryview:
        """What the next bytes go to: the rest of the block."""
        if not self._block:
            self._block = memoryview(bytearray(min(BLOCK_BYTES, self._left)))
            self._began = self._clock()
        return self._block[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes are there."""
        self._filled += nbytes
        self._left -= nbytes
        if self._filled == len(self._block) or self._clock() - self._began >= _HAND_OVER_SECONDS:
            block, self._block, self._filled = self._block[: self._filled], memoryview(b""), 0
            self._take(block, not self._left)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended."""
        self._protocol.connection_lost(exc)

    def eof_received(self) -> None:
        """The peer sends no more."""
        self._protocol.eof_received()

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is answered."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._protocol.resume_writing()
