"""A line between a client and a server that can be cut, stalled, slowed down and reset."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

PIECE = 4096


class Link:
    """Passes on what comes for one address; TLS is between the two ends, so it can change nothing unnoticed."""

    def __init__(self, port: int) -> None:
        """port: of the server, on this machine."""
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self._bytes_a_second = 0.0
        self.port = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen while the context lasts."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            self._flows.set()
            self._is_cut = True
            self.reset()
            if self._serving:
                await asyncio.wait(self._serving)

    def reset(self) -> None:
        """End all connections with RST, as a firewall does that has forgotten them."""
        for writer in tuple(self._writers):
            with contextlib.suppress(OSError):
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def cut(self, seconds: float) -> None:
        """End all connections, and accept none for a while."""
        self._is_cut = True
        self.reset()
        await asyncio.sleep(seconds)
        self._is_cut = False

    async def stall(self, seconds: float) -> None:
        """Pass nothing on for a while, without a word."""
        self._flows.clear()
        await asyncio.sleep(seconds)
        self._flows.set()

    async def slow_down(self, seconds: float, bytes_a_second: float) -> None:
        """Pass on so many bytes a second in either direction for a while."""
        self._bytes_a_second = bytes_a_second
        await asyncio.sleep(seconds)
        self._bytes_a_second = 0.0

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._is_cut:
                return
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(far_writer)
            try:
                await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.close()
        except OSError:  # the server is down, or an end has gone
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE):
            if self._bytes_a_second:
                await asyncio.sleep(len(piece) / self._bytes_a_second)
            await self._flows.wait()
            writer.write(piece)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def links_of(kits: Sequence[Path], addresses: Sequence[str]) -> AsyncIterator[list[Link]]:
    """A link from each client to each server; the clients' kits name their own links in place of the servers."""
    links = []
    async with contextlib.AsyncExitStack() as stack:
        for kit in kits:
            path = kit / "client.toml"
            text = path.read_text(encoding="utf-8")
            for address in addresses:
                link = Link(int(address.rpartition(":")[2]))
                await stack.enter_async_context(link.open())
                text = text.replace(address, f"https://127.0.0.1:{link.port}")
                links.append(link)
            path.write_text(text, encoding="utf-8")
        yield links
