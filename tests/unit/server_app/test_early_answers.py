"""Requests that are answered before their bodies were read, over real sockets that are kept.

What a client may rely on: either the connection goes on, and the next request on it is answered, or the answer says
that it is closed, and then it is closed and not reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send
from support.loopback import listening
from support.serverside import Site, site

from fedcore.federation import FederationFolder
from fedcore.wire.chunks import PART_BYTES
from server_app.http import early_answers
from server_app.http.early_answers import KEEP_BYTES
from server_app.http.large_bodies import BLOCK_BYTES, LEAST_BYTES
from server_app.runs.leadership import Leadership

STANDBY, STRANGER, NOWHERE, TOO_LONG, ENDED = "standby", "stranger", "nowhere", "too long", "ended"
STATUS = {STANDBY: 503, STRANGER: 401, NOWHERE: 404, TOO_LONG: 413, ENDED: 404}
PART = "/v1/runs/run-none/exchanges/1/update/parts/0"
LIMITS = (64 << 10, LEAST_BYTES, 200_000, LEAST_BYTES + (64 << 10), BLOCK_BYTES, KEEP_BYTES, PART_BYTES)
SIZES = sorted({1, *LIMITS, *(size + 1 for size in LIMITS[:-1]), *(size - 1 for size in LIMITS)})


@dataclass
class Server:
    here: Site
    port: int
    tls: ssl.SSLContext | None

    async def connect(self) -> Line:
        name = "127.0.0.1" if self.tls else None
        return Line(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls, server_hostname=name))

    def head(self, why: str, framing: str, body: bytes) -> bytes:
        """Of a request that is refused for a reason that needs nothing of its body."""
        path = {NOWHERE: "/v1/nowhere", TOO_LONG: "/v1/heartbeat"}.get(why, PART)
        method = "POST" if why == TOO_LONG else "PUT"
        lines = [f"{method} {path} HTTP/1.1", "Host: server", "Content-Type: application/octet-stream", framing]
        if why != STRANGER:
            signed = self.here.members[1].signed(method, path, digest=hashlib.sha256(body).digest())
            lines += [f"{name}: {value}" for name, value in signed.items()]
        return "\r\n".join([*lines, "", ""]).encode()


@dataclass
class Line:
    """A connection as a client keeps it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answered(self) -> tuple[int, bool]:
        """The next answer's status, and whether it is the last one. There is none where the connection is reset."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        await self.reader.readexactly(int(fields.get(b"content-length", b"0")))
        return int(head.split()[1]), fields.get(b"connection") == b"close"

    async def is_good(self, is_last: bool) -> None:
        """It is closed where that was said, and takes another request elsewhere."""
        if is_last:
            assert await self.reader.read() == b""
        else:
            self.writer.write(b"GET /healthz HTTP/1.1\r\nHost: server\r\n\r\n")
            assert await self.answered() == (200, False)
        self.writer.close()


@contextlib.asynccontextmanager
async def served(federation: FederationFolder, folder: Path, why: str, *, is_tls: bool) -> AsyncIterator[Server]:
    context = ssl.create_default_context(cafile=federation.server / "ca.crt") if is_tls else None
    async with (
        site(federation, folder) as here,
        listening(here.application.asgi, tls=federation if is_tls else None) as (_, port),
    ):
        with pytest.MonkeyPatch.context() as patch:
            if why == STANDBY:
                patch.setattr(Leadership, "leads", False)
            yield Server(here, port, context)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(early_answers, "KEEP_SECONDS", 30.0)  # what is on its way is here before, on any machine
    return


@pytest.mark.parametrize("why", STATUS)
@pytest.mark.parametrize("is_tls", [True, False], ids=["tls", "plain"])
async def test_the_next_request_is_heard_or_the_answer_was_the_last(
    federation: FederationFolder, tmp_path: Path, why: str, is_tls: bool
) -> None:
    """The client sends all of the body and only then reads, as most do."""
    async with served(federation, tmp_path, why, is_tls=is_tls) as server:
        for size in SIZES:
            if why == TOO_LONG and size < 200_000:
                continue
            line, body = await server.connect(), bytes(size)
            line.writer.write(server.head(why, f"Content-Length: {size}", body))
            line.writer.write(body)
            status, is_last = await line.answered()
            assert status == STATUS[why]
            assert is_last == (size > KEEP_BYTES)
            await line.is_good(is_last)


@pytest.mark.parametrize("why", [STANDBY, STRANGER])
async def test_a_body_that_comes_a_little_later_too(federation: FederationFolder, tmp_path: Path, why: str) -> None:
    async with served(federation, tmp_path, why, is_tls=True) as server:
        for size in (200_000, 900_000):
            line, body = await server.connect(), bytes(size)
            line.writer.write(server.head(why, f"Content-Length: {size}", body))
            await asyncio.sleep(0.05)
            for start in range(0, size, 300_000):
                line.writer.write(body[start : start + 300_000])
                await line.writer.drain()
                await asyncio.sleep(0.01)
            assert await line.answered() == (STATUS[why], False)
            await line.is_good(False)


@pytest.mark.parametrize("why", STATUS)
async def test_a_body_in_chunks_ends_its_connection(federation: FederationFolder, tmp_path: Path, why: str) -> None:
    """How long it will be is not known; but one of which all was read is over."""
    async with served(federation, tmp_path, why, is_tls=True) as server:
        for count in (1, 40):
            line, chunk = await server.connect(), b"%x\r\n" % 50_000 + bytes(50_000) + b"\r\n"
            line.writer.write(server.head(why, "Transfer-Encoding: chunked", bytes(50_000 * count)))
            line.writer.write(chunk * count + b"0\r\n\r\n")
            status, is_last = await line.answered()
            if not (why == TOO_LONG and count == 1):
                assert (status, is_last) == (STATUS[why], True)
            await line.is_good(is_last)


@pytest.mark.parametrize("why", STATUS)
@pytest.mark.parametrize("sends", [True, False], ids=["sends it all the same", "waits"])
async def test_who_waits_for_leave_to_send_a_body_is_not_given_it(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, sends: bool
) -> None:
    """Whether such a body follows nobody can know (RFC 9110, section 10.1.1), so the connection ends."""
    if not sends:
        monkeypatch.setattr(early_answers, "CLOSE_SECONDS", 0.05)
    async with served(federation, tmp_path, why, is_tls=True) as server:
        line, body = await server.connect(), bytes(300_000)
        framing = f"Content-Length: {len(body)}\r\nExpect: 100-continue"
        line.writer.write(server.head(why, framing, body) + (body if sends else b""))
        status, is_last = await line.answered()
        assert (status, is_last) == (STATUS[why], True)
        await line.is_good(True)


async def test_who_stops_in_the_midst_is_told_and_closed(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_answers, "KEEP_SECONDS", 0.05)
    monkeypatch.setattr(early_answers, "CLOSE_SECONDS", 0.05)
    async with served(federation, tmp_path, STANDBY, is_tls=True) as server:
        line = await server.connect()
        line.writer.write(server.head(STANDBY, "Content-Length: 300000", bytes(300_000)) + bytes(1000))
        assert await line.answered() == (503, True)
        await line.is_good(True)


@pytest.mark.parametrize("is_tls", [True, False], ids=["tls", "plain"])
async def test_a_connection_that_an_application_keeps_takes_the_next_request(
    federation: FederationFolder, is_tls: bool
) -> None:
    """The protocol by itself, under an application that says nothing of the connection and reads no body."""

    async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    context = ssl.create_default_context(cafile=federation.server / "ca.crt") if is_tls else None
    async with listening(refuses, tls=federation if is_tls else None) as (_, port):
        name = "127.0.0.1" if is_tls else None
        line = Line(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name))
        for size in SIZES:
            line.writer.write(f"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode() + bytes(size))
            assert await line.answered() == (503, False)
        line.writer.close()
