"""The lines of the kill harness pass everything on, and break as they are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from benchmarks.chaos_clients import Log
from benchmarks.chaos_links import Link


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes) -> bytes:
    writer.write(content)
    return await reader.readexactly(len(content))


async def test_a_line_passes_all_on_stalls_and_goes_on() -> None:
    async with echo() as port, (link := Link(port)).open():
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        content = bytes(range(256)) * 1000
        assert await said(reader, writer, content) == content
        stalled = asyncio.create_task(link.stall(0.2))
        await asyncio.sleep(0)
        answer = asyncio.create_task(said(reader, writer, b"word"))
        await asyncio.wait({answer, stalled}, return_when=asyncio.FIRST_COMPLETED)
        assert stalled.done()
        assert not answer.done()
        assert await answer == b"word"
        writer.close()


async def test_a_line_that_is_cut_ends_what_was_open_and_takes_nothing_new() -> None:
    async with echo() as port, (link := Link(port)).open():
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        await said(reader, writer, b"word")
        cut = asyncio.create_task(link.cut(0.3))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await cut
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await said(reader, writer, b"again") == b"again"
        writer.close()


async def test_a_line_that_is_reset_says_so() -> None:
    async with echo() as port, (link := Link(port)).open():
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        await said(reader, writer, b"word")
        link.reset()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


def test_the_longest_silence_counts_from_the_fault_on() -> None:
    log = Log(times=[1.0, 10.0, 12.0, 20.0])
    assert log.longest_silence(11.0) > 8.0
    assert log.last_message == 20.0
