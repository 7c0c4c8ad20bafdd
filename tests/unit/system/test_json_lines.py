"""What processes print, and messages over a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Literal

import pytest
from pydantic import BaseModel, TypeAdapter

from fedcore.system.json_lines import LINE_CHARACTERS, AsyncConnection, BlockingConnection, printed_lines


class Ping(BaseModel):
    op: Literal["ping"] = "ping"
    number: int


PING: TypeAdapter[Ping] = TypeAdapter(Ping)


async def test_what_is_printed_comes_in_lines_of_bounded_length() -> None:
    stream = asyncio.StreamReader()
    for chunk in (
        b"one\ntw",
        b"o\r\n\n",
        "caf\u00e9\n".encode()[:4],
        "caf\u00e9\n".encode()[4:],
        b"x" * 9000,
        b"\nend",
    ):
        stream.feed_data(chunk)
    stream.feed_eof()
    lines = [line async for line in printed_lines(stream)]
    assert lines == ["one", "two", "", "caf\u00e9", "x" * LINE_CHARACTERS, "end"]


async def test_both_ends_speak_until_one_hangs_up() -> None:
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    near = await AsyncConnection.over(ours, PING)
    far = BlockingConnection(theirs, PING, on_close=gone.set)
    await near.send(Ping(number=1))
    assert await asyncio.to_thread(far.receive) == Ping(number=1)
    far.send(Ping(number=2))
    assert await near.receive() == Ping(number=2)
    await near.close()
    assert await asyncio.to_thread(gone.wait, 60.0)
    theirs.close()


async def test_a_close_that_was_cancelled_can_be_done_again() -> None:
    ours, theirs = socket.socketpair()
    near = await AsyncConnection.over(ours, PING)
    first = asyncio.create_task(near.close())
    await asyncio.sleep(0)  # it waits for the end of the transport
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await near.close()
    theirs.close()


@pytest.mark.parametrize(
    ("sent", "error"), [(b'{"op": "pong"}\n', ValueError), (b"[\n", ValueError), (b'{"op": "ping", "number": 1}', None)]
)
async def test_nothing_else_gets_in(sent: bytes, error: type[Exception] | None) -> None:
    ours, theirs = socket.socketpair()
    near = await AsyncConnection.over(ours, PING)
    theirs.sendall(sent)
    theirs.close()
    if error is None:
        assert await near.receive() is None, "half a message is none"
    else:
        with pytest.raises(error):
            await near.receive()
    await near.close()
