"""The server behind a real socket: heads and bodies that stall, are too long, or end too early."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from support.loopback import NEVER, listening
from support.serverside import Site, site, until
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.federation import FederationFolder
from fedcore.system.concurrency import end
from server_app.http import early_answers, guard
from server_app.http.head_limits import MOST_FAILED_REQUESTS, GuardedProtocol


@contextlib.asynccontextmanager
async def socketed(
    federation: FederationFolder, folder: Path, *, stall_seconds: float = NEVER
) -> AsyncIterator[tuple[Site, int]]:
    async with (
        site(federation, folder, stall_seconds=stall_seconds) as made,
        listening(made.application.asgi) as (_, port),
    ):
        yield made, port


def head(site: Site, path: str, length: int, *, digest: bytes | None = None) -> bytes:
    signed = site.members[1].signed("PUT" if "update" in path else "POST", path, digest=digest)
    method = "PUT" if "update" in path else "POST"
    lines = [f"{method} {path} HTTP/1.1", "Host: server", f"Content-Length: {length}"]
    lines += ["Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in signed.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_a_body_that_stalls_is_dropped(federation: FederationFolder, tmp_path: Path) -> None:
    async with socketed(federation, tmp_path, stall_seconds=0.2) as (made, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(made, "/v1/heartbeat", 100) + b"{")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer
        writer.close()


def signed_get(made: Site, path: str) -> bytes:
    fields = [f"{name}: {value}" for name, value in made.members[1].signed("GET", path).items()]
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: server", *fields, "", ""]).encode()


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPCNT"), reason="this system has no such option")
async def test_a_dead_line_is_noticed_sooner_while_a_poll_waits(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path) as made, listening(made.application.asgi) as (server, port):

        def probes() -> set[int]:
            socks = [protocol.connection.sock for protocol in server.server_state.connections]
            return {sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) for sock in socks}

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: len(probes()) == 1)
        before = probes()
        writer.write(signed_get(made, "/v1/task?wait=30"))
        await until(lambda: probes() != before)
        assert max(probes()) < min(before)
        made.services.client_bell.stop()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
        assert probes() == before
        writer.close()


async def test_a_member_is_no_stranger_to_a_standby(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path) as made, listening(made.application.asgi) as (server, port):
        await made.application.leadership.stop()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: server.limiter.strangers == 1)
        writer.write(signed_get(made, "/v1/task"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
        assert server.limiter.strangers == 0
        writer.close()


async def cut_off(port: int, start: bytes) -> None:
    """The server closes the connection and says nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()


async def test_a_head_that_is_too_long_is_dropped(federation: FederationFolder, tmp_path: Path) -> None:
    async with socketed(federation, tmp_path) as (_, port):
        start = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
        await cut_off(port, start + b"A: " + b"a" * 20_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start + b"A: b\r\n" * 5000 + b"\r\n")
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            # Where the head came in pieces, the connection is cut off in the midst of it.
            assert not answer or answer.startswith(b"HTTP/1.1 400")
        writer.close()


@pytest.mark.parametrize(("fields", "status"), [(90, b"200"), (110, b"400")])
async def test_the_fields_of_a_head_are_counted(
    federation: FederationFolder, tmp_path: Path, fields: int, status: bytes
) -> None:
    """7,000 of them are no longer than a head may be, and cost 19 ms."""
    async with socketed(federation, tmp_path) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n" + b"a: b\r\n" * fields + b"\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 " + status)
        if status == b"400":
            assert b"application/problem+json" in answer
        writer.close()


async def test_requests_whose_answers_nobody_reads_are_few(federation: FederationFolder, tmp_path: Path) -> None:
    """As many as are pipelined would each be kept until the ones before it are answered."""
    async with socketed(federation, tmp_path) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 5)
        for _ in range(5):
            assert (await reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")
        await cut_off(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
        writer.close()


async def test_an_answer_that_nobody_reads_is_given_up(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "unread_seconds", 0.1)
    async with socketed(federation, tmp_path) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]

        async def ask_on() -> None:
            while True:  # as fast as it is answered, so that no queue of requests is what ends it
                writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.001)

        with pytest.raises(ConnectionError):
            await ask_on()
        del reader


async def test_a_stranger_who_is_refused_again_and_again_loses_its_connection(
    federation: FederationFolder, tmp_path: Path
) -> None:
    request = b"GET /v1/task HTTP/1.1\r\nHost: x\r\n\r\n"
    async with socketed(federation, tmp_path) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(1, MOST_FAILED_REQUESTS + 1):
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 401")
            assert (b"connection: close" in answer) == (number == MOST_FAILED_REQUESTS)
            if number < MOST_FAILED_REQUESTS:
                await reader.readuntil(b"}")
        await reader.read()
        writer.close()


async def test_a_body_that_trickles_is_dropped(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte is there in time, and all of them would take hours."""
    monkeypatch.setattr(guard, "LEAST_BYTES_A_SECOND", 1e9)
    async with socketed(federation, tmp_path, stall_seconds=0.5) as (made, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(made, "/v1/heartbeat", 50_000))

        async def trickle() -> None:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 408")
        await end(trickling)
        writer.close()


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 400000000", b"Transfer-Encoding: chunked"], ids=["announced", "in chunks"]
)
async def test_a_strangers_body_is_not_waited_for(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framing: bytes
) -> None:
    """It is answered and closed before a byte of the body is there."""
    monkeypatch.setattr(early_answers, "KEEP_SECONDS", NEVER)
    monkeypatch.setattr(early_answers, "CLOSE_SECONDS", 0.05)
    async with socketed(federation, tmp_path) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/join HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"connection: close" in answer
        writer.close()


async def test_a_head_that_is_late_is_dropped(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path) as made, listening(made.application.asgi, header_seconds=0.2) as (_, port):
        await cut_off(port, b"")
        await cut_off(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100)


async def test_idle_strangers_lock_nobody_out(federation: FederationFolder, tmp_path: Path) -> None:
    """They come from many addresses, more than there are places for; a member is still heard, and so is a newcomer."""
    async with site(federation, tmp_path) as made, listening(made.application.asgi, most=16) as (server, port):
        path, url = "/v1/heartbeat", f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=None) as known:

            async def heartbeat(http: httpx.AsyncClient) -> int:
                signed = made.members[1].signed("POST", path, b"{}")
                answer = await http.post(path, content=b"{}", headers={"Content-Type": "application/json", **signed})
                return answer.status_code

            assert await heartbeat(known) == 204
            idle = [
                await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{2 + number // 3}", 0))
                for number in range(36)
            ]
            await until(lambda: server.limiter.strangers == server.limiter.for_strangers == 8)
            assert await heartbeat(known) == 204
            (own, *more) = [seen.connection.who for seen in server.server_state.connections if seen.connection.who]
            assert (own, more) == ("client-1", [])
            async with httpx.AsyncClient(base_url=url, timeout=None) as newcomer:
                assert await heartbeat(newcomer) == 204
        await until(lambda: sum(reader.at_eof() for reader, _ in idle) >= 28)
        for _, writer in idle:
            writer.close()


async def test_who_shows_no_handshake_is_turned_out(federation: FederationFolder, tmp_path: Path) -> None:
    async with (
        site(federation, tmp_path) as made,
        listening(made.application.asgi, header_seconds=0.2, tls=federation) as (server, port),
    ):
        await cut_off(port, b"")
        await until(lambda: server.limiter.strangers == 0)


async def test_a_refused_body_is_not_read_on(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in small chunks either, each of which is soon there."""
    monkeypatch.setattr(early_answers, "CLOSE_SECONDS", 0.2)
    trusted = ssl.create_default_context(cafile=federation.server / "ca.crt")
    async with site(federation, tmp_path) as made, listening(made.application.asgi, tls=federation) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="127.0.0.1")
        start = head(made, "/v1/heartbeat", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        writer.write(start + b"%x\r\n" % 90_000 + bytes(90_000) + b"\r\n")
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))

        async def go_on() -> None:
            while True:
                writer.write(b"1\r\nx\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await go_on()
        assert (await answer).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_a_kept_connection_has_no_clock_running_between_requests(
    federation: FederationFolder, tmp_path: Path
) -> None:
    async with (
        site(federation, tmp_path) as made,
        listening(made.application.asgi) as (server, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None) as http,
    ):
        for _ in range(2):
            assert (await http.get("/healthz")).status_code == 200
            (connection,) = server.server_state.connections
            assert isinstance(connection, GuardedProtocol)
            assert not connection.awaits_head


async def test_a_truncated_upload_leaves_nothing_and_can_come_again(
    federation: FederationFolder, tmp_path: Path, model: object
) -> None:
    async with socketed(federation, tmp_path) as (made, port):
        _, app = await made.begin()
        asked = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))  # type: ignore[arg-type]
        members = await made.enter_all()
        await asyncio.gather(*(member.secure(until="upload") for member in members))
        first = members[0]
        body, manifest = first.vector()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        digest = hashlib.sha256(body).digest()
        writer.write(head(made, first.at("update/parts/0"), len(body), digest=digest) + body[:5000])
        await writer.drain()
        spool = made.services.settings.spool_dir
        await until(lambda: any(spool.iterdir()))
        writer.close()
        await until(lambda: not any(spool.iterdir()))
        await first.send(body)
        await first.put("manifest", manifest)
        await asyncio.gather(*(member.upload() for member in members[1:]))
        await asyncio.gather(*(member.sign() for member in members))
        await asyncio.gather(*(member.unmask() for member in members))
        (reply,) = (await asked).replies  # type: ignore[union-attr]
        assert reply.examples == 40
        del reader


def test_a_missing_kit_is_a_clear_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["server", "--federation", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "server.toml" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_has_an_example() -> None:
    result = CliRunner().invoke(app, ["server", "--help"])
    assert result.exit_code == 0
    assert "fedcore server --federation federation" in result.stdout
