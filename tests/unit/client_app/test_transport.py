"""The transport against a real TLS server: retries, bounds, digests, certificates."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import Response
from fastapi.responses import FileResponse, StreamingResponse

from client_app.exchange.client import Client
from client_app.http import http_transport
from client_app.http.errors import tls_context
from client_app.http.http_transport import HttpTransport, signer
from client_app.http.retry import ONCE, Retry
from fedcore.errors import (
    EnvironmentFailure,
    NotAccepted,
    ProtocolViolation,
    Refused,
    ServerUnreachable,
    StorageFull,
    Unauthorized,
)
from fedcore.federation import ClientKit, FederationFolder, provision
from fedcore.wire.presence import HeartbeatIn, JoinIn, JoinOut
from fedcore.wire.secagg import SurvivorsOut
from tests.support.raising import raises

Script = Any  # support.scripted.Scripted
PATIENCE = 200.0
JOIN = JoinIn(app_sha256="0" * 64, version="1")


def problem(status: int, kind: str, detail: str = "no") -> Response:
    document = f'{{"type":"urn:fedcore:problem:{kind}","title":"t","status":{status},"detail":"{detail}"}}'
    return Response(document, status_code=status, media_type="application/problem+json")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Watched:
    """A transport on a clock of its own: its pauses take no time, and its attempts are counted."""

    def __init__(self, kit: ClientKit, *, ca_file: Path | None = None) -> None:
        self.pauses: list[float] = []
        self.attempts = 0
        self._sign = signer(kit)
        self.transport = HttpTransport(
            urls=kit.servers,
            tls=tls_context(ca_file or kit.ca_file),
            sign=self._count,
            retry=Retry(stuck_seconds=PATIENCE, away_seconds=PATIENCE),
            clock=lambda: sum(self.pauses),
            sleep=self._pause,
        )

    def _count(self, method: str, target: str, digest: bytes) -> Mapping[str, str]:
        self.attempts += 1
        return self._sign(method, target, digest)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def watched(kits: dict[int, ClientKit]) -> Watched:
    return Watched(kits[1])


class TestRetries:
    async def test_a_busy_server_and_a_5xx_are_tried_again_with_a_new_signature(
        self, script: Script, client: Client
    ) -> None:
        """The server's nonce cache would refuse the same signed request a second time."""
        script.answers.extend([problem(429, "busy"), problem(500, "internal")])
        async with script.serving():
            joined = await client.transport.ask("POST", "/v1/join", JOIN, JoinOut)
        assert joined.federation == "testing"
        assert script.requests == ["POST join"] * 3

    async def test_a_body_that_a_pause_cut_off_is_sent_again(self, script: Script, client: Client) -> None:
        """408 is no word about the request: the line stood still until the server gave it up."""
        script.answers.append(problem(408, "malformed", "the body made no progress; send it again"))
        async with script.serving():
            await client.transport.ask("POST", "/v1/join", JOIN, JoinOut)
        assert script.requests == ["POST join"] * 2

    async def test_a_4xx_is_never_tried_again(self, script: Script, client: Client) -> None:
        script.answers.append(problem(409, "conflict", "other bytes"))
        async with script.serving():
            with raises(Refused, detail="other bytes") as caught:
                await client.transport.send("POST", "/v1/heartbeat", HeartbeatIn())
        assert (caught.value.status, caught.value.kind) == (409, "conflict")
        assert len(script.requests) == 1

    async def test_a_lasting_5xx_is_told_as_it_is(self, script: Script, watched: Watched) -> None:
        script.answers.extend(problem(507, "storage-full", "the disk is full") for _ in range(500))
        async with script.serving(), watched.transport as transport:
            with raises(Refused, detail="the disk is full"):
                await transport.send("POST", "/v1/heartbeat", HeartbeatIn())
        assert len(script.requests) == watched.attempts == len(watched.pauses) + 1

    async def test_a_token_that_was_pulled_is_waited_for(
        self, script: Script, kits: dict[int, ClientKit], notices: list[str]
    ) -> None:
        """Its signatures fail meanwhile, as a line does that is down; no request is lost."""
        kit, pulled = kits[1], [True] * 3
        sign = signer(kit)

        def sign_with_token(method: str, target: str, digest: bytes) -> Mapping[str, str]:
            if pulled:
                pulled.pop()
                raise EnvironmentFailure("the token hospital is not there")
            return sign(method, target, digest)

        transport = HttpTransport(
            urls=kit.servers, tls=tls_context(kit.ca_file), sign=sign_with_token, notice=notices.append
        )
        async with script.serving(), transport:
            with raises(ServerUnreachable, match="hospital"):
                await transport.ask("POST", "/v1/join", JOIN, JoinOut, retry=ONCE)
            assert (await transport.ask("POST", "/v1/join", JOIN, JoinOut)).name == "client-1"
        assert script.requests == ["POST join"]
        assert any("hospital" in line for line in notices)

    async def test_waits_for_a_server_that_starts_late(
        self, script: Script, client: Client, notices: list[str]
    ) -> None:
        asking = asyncio.create_task(client.transport.ask("POST", "/v1/join", JOIN, JoinOut))
        while not notices:
            await asyncio.sleep(0.01)
            assert not asking.done()
        async with script.serving():
            assert (await asking).name == "client-1"

    async def test_no_server_is_named_with_its_address(self, watched: Watched) -> None:
        async with watched.transport as transport:
            with pytest.raises(ServerUnreachable, match=r"https://127\.0\.0\.1:"):
                await transport.send("POST", "/v1/heartbeat", HeartbeatIn(), retry=ONCE)
        assert watched.attempts == 1

    async def test_pauses_grow_and_differ(self, watched: Watched) -> None:
        async with watched.transport as transport:
            with pytest.raises(ServerUnreachable):
                await transport.send("POST", "/v1/heartbeat", HeartbeatIn())
        assert PATIENCE <= sum(watched.pauses) < PATIENCE + 10
        bounds = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4] + [10.0] * len(watched.pauses)
        assert all(0 <= pause <= bound for pause, bound in zip(watched.pauses, bounds, strict=False))
        assert max(watched.pauses) > 2
        assert len(set(watched.pauses)) == len(watched.pauses)


class TestAnswers:
    async def test_a_401_says_what_the_server_said(self, script: Script, client: Client) -> None:
        script.answers.append(problem(401, "unauthorized", "word-4711"))
        async with script.serving():
            with pytest.raises(Unauthorized, match="word-4711"):
                await client.transport.send("POST", "/v1/heartbeat", HeartbeatIn())

    async def test_a_peer_cannot_steer_the_terminal(self, script: Script, client: Client) -> None:
        script.answers.append(problem(409, "conflict", "\\u001b[2Jgone" + "x" * 9000))
        async with script.serving():
            with pytest.raises(Refused) as caught:
                await client.transport.send("POST", "/v1/heartbeat", HeartbeatIn())
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) < 1000

    async def test_a_refusal_without_a_problem_document(self, script: Script, client: Client) -> None:
        script.answers.append(Response("<html>proxy</html>", status_code=403))
        async with script.serving():
            with raises(Refused, kind="", status=403):
                await client.transport.send("POST", "/v1/heartbeat", HeartbeatIn())

    async def test_what_was_sent_is_not_quoted(self, script: Script, client: Client) -> None:
        script.answers.append(Response('{"survivors": ["<secret>"]}'))
        async with script.serving():
            with pytest.raises(ProtocolViolation, match="malformed") as caught:
                await client.transport.get("/v1/survivors", SurvivorsOut)
        assert "secret" not in str(caught.value)

    async def test_an_endless_answer_is_cut_off(
        self, script: Script, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http_transport, "MAX_CONTROL_BYTES", 10_000)

        async def long() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b" " * 5000

        script.answers.append(StreamingResponse(long()))
        async with script.serving():
            with raises(ProtocolViolation, check="malformed", match=r"\b0 MiB"):
                await client.transport.get("/v1/survivors", SurvivorsOut)

    async def test_an_answer_is_needed(self, script: Script, client: Client) -> None:
        script.answers.append(Response(status_code=204))
        async with script.serving():
            with pytest.raises(ProtocolViolation, match="nothing"):
                await client.transport.ask("POST", "/v1/join", JOIN, JoinOut)


class TestTls:
    async def test_another_authority_is_refused(
        self, script: Script, kits: dict[int, ClientKit], tmp_path: Path
    ) -> None:
        other = provision(tmp_path / "other", name="testing", clients=2, now=datetime.now(UTC))
        foreign = Watched(kits[1], ca_file=ClientKit.load(other.clients[0]).ca_file)
        async with script.serving(), foreign.transport as transport:
            with pytest.raises(Unauthorized, match=r"ca\.crt"):
                await transport.send("POST", "/v1/heartbeat", HeartbeatIn())
        assert foreign.attempts == 1
        assert script.requests == []

    async def test_another_name_is_refused(self, script: Script, kits: dict[int, ClientKit]) -> None:
        kit = replace(kits[1], servers=(kits[1].servers[0].replace("127.0.0.1", "localhost"),))
        async with script.serving(), Watched(kit).transport as transport:
            with pytest.raises(Unauthorized, match=r"localhost.*ca\.crt"):
                await transport.send("POST", "/v1/heartbeat", HeartbeatIn())
        assert script.requests == []

    async def test_a_foreign_identity_is_refused(self, script: Script, kits: dict[int, ClientKit]) -> None:
        def forge(method: str, target: str, digest: bytes) -> dict[str, str]:
            headers = dict(signer(kits[2])(method, target, digest))
            headers["Signature-Input"] = headers["Signature-Input"].replace("client-2", "client-1")
            return headers

        kit = kits[1]
        async with (
            script.serving(),
            HttpTransport(urls=kit.servers, tls=tls_context(kit.ca_file), sign=forge) as transport,
        ):
            with pytest.raises(NotAccepted):
                await transport.send("POST", "/v1/heartbeat", HeartbeatIn())


class TestHandshake:
    async def test_a_handshake_that_is_given_up_leaves_no_socket(self, client: Client) -> None:
        """What was opened is closed at once, and not whenever somebody notices."""
        came, gone = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)  # of the client's hello
            came.set()
            await reader.read()
            gone.set()
            writer.close()

        address = urlsplit(client.transport.url)
        async with await asyncio.start_server(silent, address.hostname, address.port):
            sending = asyncio.create_task(client.transport.send("POST", "/v1/heartbeat", HeartbeatIn()))
            await came.wait()
            sending.cancel()
            await asyncio.wait([sending])
            await gone.wait()
        assert sending.cancelled()


class TestConnections:
    async def test_one_connection_serves_one_request_after_another(self, script: Script, client: Client) -> None:
        async with script.serving():
            for _ in range(3):
                await client.transport.send("POST", "/v1/heartbeat", HeartbeatIn())
        assert script.requests == ["POST heartbeat"] * 3
        assert len(set(script.lines)) == 1

    async def test_a_connection_that_the_server_has_ended_is_not_used_again(
        self, script: Script, client: Client
    ) -> None:
        for _ in range(2):
            async with script.serving():
                await client.transport.send("POST", "/v1/heartbeat", HeartbeatIn())
        assert client.transport.interruptions == 0

    async def test_a_request_that_is_cancelled_leaves_its_connection_to_nobody(
        self, script: Script, client: Client
    ) -> None:
        began, over = asyncio.Event(), asyncio.Event()

        async def stalled() -> AsyncIterator[bytes]:
            began.set()
            await over.wait()
            yield b"{}"

        script.answers.append(StreamingResponse(stalled()))
        async with script.serving():
            asking = asyncio.create_task(client.transport.get("/v1/survivors", SurvivorsOut))
            await began.wait()
            asking.cancel()
            await asyncio.wait([asking])
            over.set()
            await client.transport.send("POST", "/v1/heartbeat", HeartbeatIn())
        assert len(set(script.lines)) == 2

    async def test_who_is_cancelled_after_the_answer_ends_nobody_elses_connection(
        self, client: Client, federation: FederationFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The thread has given the connection back, and the task has not heard of it yet."""
        loop, told = asyncio.get_running_loop(), threading.Event()
        tell = loop.call_soon_threadsafe

        def watched(*arguments: Any, **options: Any) -> asyncio.Handle:
            handle = tell(*arguments, **options)
            told.set()
            return handle

        with answering_in_a_thread(federation) as lines:
            heartbeat = partial(client.transport.send, "POST", "/v1/heartbeat", HeartbeatIn(), retry=ONCE)
            await heartbeat()
            monkeypatch.setattr(loop, "call_soon_threadsafe", watched)
            asking = asyncio.create_task(heartbeat())
            await asyncio.sleep(0)  # the thread has it
            assert told.wait(60)
            asking.cancel()
            await asyncio.wait([asking])
            await heartbeat()
        assert asking.cancelled()
        assert len(lines) == 3
        assert len(set(lines)) == 1


@contextmanager
def answering_in_a_thread(federation: FederationFolder) -> Iterator[list[int]]:
    """A server that runs while the event loop stands still; gives the client's port of each request."""
    lines: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            lines.append(self.client_address[1])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(federation.server / "server.crt", federation.server / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", int(federation.server_url.rsplit(":", 1)[1])), Handler) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield lines
        finally:
            server.shutdown()
            thread.join()


class TestModels:
    """Download of octets; for the way up see test_upload.py."""

    @pytest.fixture
    def content(self) -> bytes:
        return bytes(range(256)) * 20_000

    async def fetch(self, client: Client, target: Path, content: bytes) -> None:
        await client.transport.download(
            "/v1/model", target, size=len(content), sha256=hashlib.sha256(content).hexdigest()
        )

    async def test_a_broken_download_is_fetched_again(
        self, script: Script, client: Client, tmp_path: Path, content: bytes
    ) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield content[:1_000_000]
            raise ConnectionResetError

        script.answers.append(StreamingResponse(broken(), headers={"content-length": str(len(content))}))
        script.lies["model"] = lambda _: content
        async with script.serving():
            await self.fetch(client, tmp_path / "model", content)
        assert (tmp_path / "model").read_bytes() == content
        assert script.requests == ["GET model"] * 2

    @pytest.mark.parametrize("mark", ["the same", "another"])
    async def test_a_broken_download_goes_on_where_it_was(
        self, script: Script, client: Client, tmp_path: Path, content: bytes, mark: str
    ) -> None:
        """A file that another has taken the place of is fetched from its beginning."""
        sent, file = 1_000_000, tmp_path / "served"
        file.write_bytes(content)

        async def broken() -> AsyncIterator[bytes]:
            yield content[:sent]
            raise ConnectionResetError

        tags = {"etag": '"one"'}
        script.answers.append(StreamingResponse(broken(), headers={**tags, "content-length": str(len(content))}))
        script.answers.append(FileResponse(file, headers={"etag": '"one"' if mark == "the same" else '"two"'}))
        async with script.serving():
            await self.fetch(client, tmp_path / "model", content)
        assert (tmp_path / "model").read_bytes() == content
        head = 2_000
        again = client.transport.traffic.down - len(content)
        assert again < head if mark == "the same" else sent - (1 << 18) <= again < sent + head

    async def test_a_refused_download_says_why(self, script: Script, client: Client, tmp_path: Path) -> None:
        script.answers.append(problem(403, "not-in-cohort", "not asked"))
        async with script.serving():
            with raises(Refused, kind="not-in-cohort"):
                await self.fetch(client, tmp_path / "new", bytes(1 << 21))

    async def test_a_download_that_is_cancelled_ends_its_connection(
        self, script: Script, client: Client, tmp_path: Path
    ) -> None:
        began, over, content = asyncio.Event(), asyncio.Event(), bytes(1 << 21)

        async def stalled() -> AsyncIterator[bytes]:
            yield content[:1000]
            began.set()
            await over.wait()

        script.answers.append(StreamingResponse(stalled(), headers={"content-length": str(len(content))}))
        async with script.serving():
            fetching = asyncio.create_task(self.fetch(client, tmp_path / "new", content))
            await began.wait()
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
            over.set()
        assert names_in(tmp_path) == ["global.safetensors", "state"]

    async def test_nothing_is_left_of_a_wrong_model(
        self, script: Script, client: Client, tmp_path: Path, content: bytes
    ) -> None:
        script.lies["model"] = lambda _: content[::-1]
        async with script.serving():
            with pytest.raises(ProtocolViolation, match="model-digest"):
                await self.fetch(client, tmp_path / "new", content)
        assert names_in(tmp_path) == ["global.safetensors", "state"]

    async def test_a_full_disk_is_named(
        self, script: Script, client: Client, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script.lies["model"] = lambda _: content
        real = os.open
        monkeypatch.setattr(os, "open", lambda path, flags, mode: real("/dev/full", os.O_WRONLY))
        async with script.serving():
            with pytest.raises(StorageFull, match=r"\b5120000\b"):
                await self.fetch(client, tmp_path / "disk", content)
