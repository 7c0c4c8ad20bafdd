"""Long bodies that pass the parser by, over real sockets: every byte arrives, and not one of the next request."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from support.serverside import until

from fedcore.federation import FederationFolder
from server_app.http import large_bodies
from server_app.http.connection_limiter import ConnectionLimiter
from server_app.http.head_limits import GuardedProtocol
from server_app.http.large_bodies import BLOCK_BYTES, LongBody
from server_app.operation.certificate import ServedCertificate
from server_app.serving import LimitedServer

NEVER = 86_400.0
BODY = bytes(range(251)) * 12_345  # 3.1 MB, and no multiple of a block


@dataclass
class Listener:
    """Reads bodies and answers with their digest. sizes: of the pieces. ends: what came in the place of one."""

    sizes: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    may_read: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.may_read.wait()
        digest, more = hashlib.sha256(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                self.ends.append(message["type"])
                return
            self.sizes.append(len(message["body"]))
            digest.update(message["body"])
            more = message["more_body"]
        answer = digest.hexdigest().encode()
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


@contextlib.asynccontextmanager
async def serving(application: Listener, tls: FederationFolder | None = None) -> AsyncIterator[int]:
    served = ServedCertificate(tls.server / "server.crt", tls.server / "server.key", wall=time.time) if tls else None
    config = uvicorn.Config(application, http=GuardedProtocol, ws="none", lifespan="off", log_config=None)
    server = LimitedServer(config, ConnectionLimiter(most=10, seconds=NEVER), served)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


async def connect(port: int, tls: FederationFolder | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if tls is None:
        return await asyncio.open_connection("127.0.0.1", port)
    context = ssl.create_default_context(cafile=str(tls.server / "ca.crt"))
    context.check_hostname = False
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


def request(body: bytes, length: int | None = None) -> bytes:
    return f"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n".encode() + body


async def answered(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    return (await reader.readexactly(64)).decode()


def on(loop: Callable[[], asyncio.AbstractEventLoop], work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_tls", [True, False], ids=["tls", "plain"])
def test_every_byte_arrives_and_the_next_request_too(
    federation: FederationFolder, loop: Callable[[], asyncio.AbstractEventLoop], is_tls: bool
) -> None:
    async def work() -> None:
        application, tls = Listener(), federation if is_tls else None
        application.may_read.set()
        async with serving(application, tls) as port:
            reader, writer = await connect(port, tls)
            for body in (BODY, BODY[: BLOCK_BYTES * 2], b"short"):
                writer.write(request(body) + request(b"right behind"))
                assert await answered(reader) == hashlib.sha256(body).hexdigest()
                assert await answered(reader) == hashlib.sha256(b"right behind").hexdigest()
            writer.close()
        # What came with the head, full blocks, and a rest.
        assert application.sizes.count(BLOCK_BYTES) >= 4
        assert max(application.sizes) == BLOCK_BYTES

    on(loop, work())


async def test_nothing_is_read_before_somebody_asks(federation: FederationFolder) -> None:
    """Who a request comes from is known by its head; until then its body stays in the sockets."""
    application, length = Listener(), 1 << 28
    async with serving(application) as port:
        _, writer = await connect(port, None)
        writer.write(request(b"", length))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                for _ in range(length >> 16):
                    writer.write(bytes(1 << 16))
                    await writer.drain()
                pytest.fail("the server took all of it")
        assert not application.sizes
        writer.transport.abort()
        application.may_read.set()


async def test_a_peer_that_goes_away_in_the_midst_is_noticed(federation: FederationFolder) -> None:
    application = Listener()
    application.may_read.set()
    async with serving(application) as port:
        _, writer = await connect(port, None)
        writer.write(request(BODY, len(BODY) + 1))
        await writer.drain()
        await until(lambda: sum(application.sizes) >= BLOCK_BYTES)
        writer.transport.abort()
        await until(lambda: bool(application.ends))
    assert application.ends == ["http.disconnect"]


def test_a_block_of_a_slow_peer_is_handed_on_before_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    now, taken = [0.0], []
    body = LongBody(None, 1000, lambda block, last: taken.append((bytes(block), last)), lambda: now[0])  # type: ignore[arg-type]
    for size, when in ((10, 0.0), (10, 0.5), (10, 1.5), (970, 1.6)):
        now[0] = when
        body.get_buffer(-1)[:size] = b"x" * size
        body.buffer_updated(size)
    assert [(len(block), last) for block, last in taken] == [(30, False), (970, True)]
    assert large_bodies.BLOCK_BYTES > 1000
