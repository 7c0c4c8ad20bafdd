"""What carries the requests: connections, kept, given up or through a proxy, and answers that come early."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Request, Response

from client_app.http.blocking_transport import BlockingTransport, HttpRequest, HttpResponse
from client_app.http.errors import ConnectionFailed, tls_context, unanswered
from fedcore.errors import ConfigurationError
from fedcore.federation import ClientKit, FederationFolder
from fedcore.system.network.proxies import proxy_of, way_out

Listening = Callable[..., Any]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture
def kit(kits: dict[int, ClientKit]) -> ClientKit:
    return kits[1]


@pytest.fixture
async def network(kit: ClientKit) -> AsyncIterator[BlockingTransport]:
    opened = BlockingTransport(tls_context(kit.ca_file), read_seconds=45.0, trust_env=False)
    yield opened
    opened.close()


def request(kit: ClientKit, method: str = "GET", target: str = "/", body: bytes = b"") -> HttpRequest:
    headers = {"content-length": str(len(body))} if body else {}
    return HttpRequest(method=method, server=kit.servers[0], target=target, headers=headers, body=body)


def content(response: HttpResponse) -> bytes:
    return b"".join(response.pieces(1000))


class Counted:
    """Answers requests; `ports` has the connection of each."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.answers: list[Response] = []
        self.app = FastAPI()
        self.app.add_route("/{path:path}", self._answer, methods=["GET", "PUT"])

    async def _answer(self, request: Request) -> Response:
        assert request.client is not None
        self.ports.append(request.client.port)
        await request.body()
        return self.answers.pop(0) if self.answers else Response("fine")


class TestConnections:
    async def test_one_whose_answer_was_not_read_to_its_end_is_not_used_again(
        self, kit: ClientKit, network: BlockingTransport, listening_to: Listening
    ) -> None:
        server = Counted()
        server.answers.append(Response(bytes(100_000)))
        async with listening_to(server.app):
            assert await network.send(request(kit), lambda response: next(response.pieces(10))) == bytes(10)
            await network.send(request(kit), content)
        assert len(set(server.ports)) == 2

    async def test_what_is_large_has_a_connection_of_its_own(
        self, kit: ClientKit, network: BlockingTransport, listening_to: Listening
    ) -> None:
        server, is_answered, goes_on = Counted(), threading.Event(), threading.Event()

        def wait(response: HttpResponse) -> bytes:
            is_answered.set()
            goes_on.wait()
            return content(response)

        async with listening_to(server.app):
            waiting = asyncio.create_task(network.send(request(kit), wait, read_seconds=9.0))
            await asyncio.to_thread(is_answered.wait)
            await network.send(request(kit, "PUT", body=b"large"), content)
            goes_on.set()
            await waiting
            small, large = server.ports
            for seconds, port in ((None, large), (9.0, small), (9.0, small), (None, large)):
                await network.send(request(kit), content, read_seconds=seconds)
                assert server.ports[-1] == port

    async def test_a_connection_that_is_never_accepted_can_be_given_up(self, kit: ClientKit) -> None:
        network = BlockingTransport(
            tls_context(kit.ca_file), read_seconds=45.0, trust_env=False, connect_seconds=3600.0
        )
        address = urlsplit(kit.servers[0])
        with socket.socket() as listener, socket.socket() as first:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.hostname, address.port))
            listener.listen(0)
            first.connect((address.hostname, address.port))  # there is no room for a second
            sending = asyncio.create_task(network.send(request(kit), content))
            await asyncio.sleep(0.05)
            sending.cancel()
            await asyncio.wait([sending])
        assert sending.cancelled()

    async def test_a_body_waits_in_the_program_for_a_slow_line(
        self, kit: ClientKit, federation: FederationFolder
    ) -> None:
        """An answer is due after the body has been handed on, not while megabytes of it wait in the kernel."""
        network = BlockingTransport(tls_context(kit.ca_file), read_seconds=45.0, trust_env=False)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(federation.server / "server.crt", federation.server / "server.key")
        address = urlsplit(kit.servers[0])
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            listener.bind((address.hostname, address.port))
            listener.listen()
            sending = asyncio.create_task(network.send(request(kit, "PUT", body=bytes(16 << 20)), content))
            accepted, peer = await asyncio.to_thread(listener.accept)
            with await asyncio.to_thread(tls.wrap_socket, accepted, server_side=True):
                queued = [0]
                while not queued[-1] or len(set(queued[-10:])) > 1:
                    await asyncio.sleep(0.01)
                    queued.append(unsent(peer[1], listener.getsockname()[1]))
                assert queued[-1] < 1 << 20
                sending.cancel()
                await asyncio.wait([sending])
        network.close()


def unsent(port: int, to: int) -> int:
    """Bytes in the kernel of a connection from a port, which the other end has not taken."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    ends = [(row[1].rpartition(":")[2], row[2].rpartition(":")[2], row[4]) for row in rows]
    return sum(
        int(queues.partition(":")[0], 16) for near, far, queues in ends if (near, far) == (f"{port:04X}", f"{to:04X}")
    )


class TestAnswers:
    """A server that speaks for itself, byte by byte."""

    @asynccontextmanager
    async def answering(self, federation: FederationFolder, handler: Handler) -> AsyncIterator[None]:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(federation.server / "server.crt", federation.server / "server.key")
        address = urlsplit(federation.server_url)
        async with await asyncio.start_server(handler, "127.0.0.1", address.port, ssl=tls):
            yield

    async def test_one_that_comes_while_the_body_goes_is_read(
        self, kit: ClientKit, network: BlockingTransport, federation: FederationFolder
    ) -> None:
        """The server refuses by the head of the request, and does not take the rest."""

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Much\r\nContent-Length: 7\r\n\r\ntoo big")
            await writer.drain()
            writer.transport.abort()

        def read(response: HttpResponse) -> tuple[int, bytes]:
            return response.status, content(response)

        async with self.answering(federation, refuse):
            for _ in range(2):  # nor is the connection used again
                answer = await network.send(request(kit, "PUT", body=bytes(50_000_000)), read)
                assert answer == (413, b"too big")

    @pytest.mark.parametrize(
        "answer",
        [
            b"",
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
            b"SSH-2.0-OpenSSH\r\n",
        ],
        ids=["nothing", "short", "short chunks", "no chunks", "many headers", "a long header", "another protocol"],
    )
    async def test_one_that_is_none_is_an_error_of_the_network(
        self, kit: ClientKit, network: BlockingTransport, federation: FederationFolder, answer: bytes
    ) -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with self.answering(federation, speak):
            with pytest.raises(ConnectionFailed):
                await network.send(request(kit), content)

    async def test_a_slow_line_shows_what_has_come(
        self, kit: ClientKit, network: BlockingTransport, federation: FederationFolder
    ) -> None:
        goes_on = threading.Event()

        async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
            await asyncio.to_thread(goes_on.wait)
            writer.write(b"later")

        def read(response: HttpResponse) -> list[bytes]:
            pieces = response.pieces(len(b"first"))
            first = next(pieces)
            goes_on.set()
            return [first, b"".join(pieces)]

        async with self.answering(federation, dribble):
            assert await network.send(request(kit), read) == [b"first", b"later"]

    async def test_one_that_makes_no_progress_is_an_error_of_the_network(
        self, kit: ClientKit, federation: FederationFolder
    ) -> None:
        ended = asyncio.Event()

        async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort")
            await reader.read()
            writer.close()
            ended.set()

        network = BlockingTransport(tls_context(kit.ca_file), read_seconds=0.01, trust_env=False)
        async with self.answering(federation, stop):
            with pytest.raises(ConnectionFailed):
                await network.send(request(kit), content)
            await ended.wait()  # the connection is closed
        network.close()

    async def test_an_error_of_the_reader_is_its_own(
        self, kit: ClientKit, network: BlockingTransport, listening_to: Listening
    ) -> None:
        """What the disk does is none of the network's."""

        def read(response: HttpResponse) -> None:
            raise FileNotFoundError

        async with listening_to(Counted().app):
            with pytest.raises(FileNotFoundError):
                await network.send(request(kit), read)


class Proxy:
    """Takes one CONNECT after another; `heads` has what it was asked. Refuses with `status` if that is not 200."""

    def __init__(self, status: int = 200) -> None:
        self.heads: list[str] = []
        self.status = status

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 {self.status} Answer\r\n\r\n".encode())
        if self.status == 200:
            host, _, port = self.heads[-1].split()[1].rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(1 << 16):
            writer.write(content)
        writer.close()


class TestProxies:
    @pytest.fixture(autouse=True)
    def _no_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in PROXY_VARIABLES:
            monkeypatch.delenv(name, raising=False)

    async def test_one_of_the_environment_carries_the_requests(
        self, kit: ClientKit, listening_to: Listening, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proxy, server = Proxy(), Counted()
        async with listening_to(server.app), proxy.serving() as port:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:s%40cret@127.0.0.1:{port}")
            network = BlockingTransport(tls_context(kit.ca_file), read_seconds=45.0, trust_env=True)
            for _ in range(2):
                assert await network.send(request(kit, "PUT", body=bytes(1 << 20)), content) == b"fine"
            network.close()
        [head] = proxy.heads
        assert head.startswith(f"CONNECT {urlsplit(kit.servers[0]).netloc} HTTP/1.")
        assert base64.b64encode(b"me:s@cret").decode() in head
        assert len(set(server.ports)) == 1

    async def test_one_that_takes_a_body_at_once_has_time_to_pass_it_on(
        self, kit: ClientKit, listening_to: Listening, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proxy, app, has_body, may_answer = Proxy(), FastAPI(), asyncio.Event(), asyncio.Event()

        async def answer(request: Request) -> Response:
            await request.body()
            has_body.set()
            await may_answer.wait()
            return Response("fine")

        app.add_route("/", answer, methods=["PUT"])
        async with listening_to(app), proxy.serving() as port:
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
            network = BlockingTransport(tls_context(kit.ca_file), read_seconds=0.05, trust_env=True)
            sending = asyncio.create_task(network.send(request(kit, "PUT", body=bytes(1 << 20)), content))
            await has_body.wait()
            await asyncio.wait([sending], timeout=0.2)
            may_answer.set()
            assert await sending == b"fine"
            network.close()

    async def test_one_that_refuses_is_an_error_without_its_password(
        self, kit: ClientKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proxy = Proxy(407)
        async with proxy.serving() as port:
            monkeypatch.setenv("ALL_PROXY", f"http://me:secret@127.0.0.1:{port}")
            network = BlockingTransport(tls_context(kit.ca_file), read_seconds=45.0, trust_env=True)
            with pytest.raises(ConnectionFailed) as caught:
                await network.send(request(kit), content)
            network.close()
        assert "407" in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_which_one_is_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        server = "https://fl.example.org:8443"
        assert proxy_of(server) is None
        monkeypatch.setenv("HTTPS_PROXY", "proxy.example.org:3128")
        proxy = proxy_of(server)
        assert proxy is not None
        assert (proxy.scheme, proxy.host, proxy.port) == ("http", "proxy.example.org", 3128)
        assert way_out(server) == "http://proxy.example.org:3128"
        assert way_out("https://127.0.0.1:8443") is None
        monkeypatch.setenv("NO_PROXY", "fl.example.org")
        assert (proxy_of(server), way_out(server)) == (None, None)

    def test_nobody_answers_through_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.example.org:3128")
        for servers in (["https://fl.example.org"], ["https://a.example.org", "https://b.example.org"]):
            error = str(unanswered(servers, ConnectionFailed("Connection refused")))
            assert "proxy.example.org:3128" in error
            assert "secret" not in error
        assert "3128" not in str(unanswered(["https://127.0.0.1:8443"], ConnectionFailed("Connection refused")))

    def test_one_of_another_kind_is_named_without_its_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@proxy.example.org")
        with pytest.raises(ConfigurationError) as caught:
            proxy_of("https://fl.example.org:8443")
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        "named", ["http://me:sec/ret@proxy.example.org", "http://me:secret@proxy.example.org:port"]
    )
    def test_an_address_that_cannot_be_read_is_not_shown(self, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
        monkeypatch.setenv("HTTPS_PROXY", named)
        with pytest.raises(ConfigurationError) as caught:
            proxy_of("https://fl.example.org:8443")
        assert "sec" not in str(caught.value)
        assert caught.value.__suppress_context__
