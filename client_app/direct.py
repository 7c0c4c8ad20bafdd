"""Requests past the event loop: over blocking TLS sockets, each of them in a thread.

TLS hands out records of 16 KiB. Through the event loop and the layers below httpx each of them costs more Python than
decryption: 40 MB were measured to take 0.23 processor seconds there and 0.04 here, and a request with a small answer
some 2 ms. So httpx keeps what it is good at, and what carries its requests is a transport of its own: connections that
are kept, written to from the memory in which the body lies, and read straight into a buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import select
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

import httpx

LEAST_BYTES: Final = 1 << 20
"""A smaller answer goes no further way than others: all at once, and through httpx."""
OCTETS: Final = "fedcore.octets"
"""The extension of a request whose body is in memory, as a memoryview: sent from there, and not a copy of it."""
_CONNECT_SECONDS: Final = 10.0
_WRITE_SECONDS: Final = 30.0
_WRITE_BYTES: Final = 256 * 1024
"""What has to be on its way within those: 70 kbit/s."""
_IDLE_SECONDS: Final = 60.0
"""The server ends connections that nobody has used for 75."""
_BUFFER_BYTES: Final = 1 << 18
"""Read at a time; a download is told to make progress when one is full."""
_AT_ONCE: Final = 1 << 16
"""Bytes of an answer up to which it is read in the same turn of a thread as its head."""
_THREADS: Final = 16
"""An agent has half a dozen requests open at once, of which one or two wait for news."""

Take = Callable[[memoryview], None]
"""What becomes of the next bytes of the body; called in the thread, and the bytes are gone after it."""
Result = TypeVar("Result")
Wire = TypeVar("Wire", bound=socket.socket)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How a request was answered. refusal: the body where that is no success."""

    status: int
    headers: httpx.Headers
    refusal: bytes = b""


def reaches_directly(url: httpx.URL, *, trust_env: bool) -> bool:
    """Whether no proxy of the environment stands between this machine and `url`, which has to be HTTPS."""
    proxies = urllib.request.getproxies() if trust_env else {}
    named = proxies.get("https") or proxies.get("all")
    return url.scheme == "https" and (not named or bool(urllib.request.proxy_bypass(url.host)))


class DirectTransport(httpx.AsyncBaseTransport):
    """What carries the requests of an `httpx.AsyncClient`.

    Raises httpx.TransportError as httpx' own transport does. A request that is cancelled ends its connection, and waits
    for its thread.
    """

    def __init__(self, tls: ssl.SSLContext, *, read_seconds: float) -> None:
        """read_seconds: how long an answer may make no progress."""
        self._tls = tls
        self._read_seconds = read_seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="network")
        self._idle: list[_Line] = []
        self._is_closed = False
        self._lock = threading.Lock()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; its answer, of which a long body is still to be read."""
        line = _Line(_place(request))
        return await self._in_thread(line, lambda: self._answered(line, request))

    async def fetch(self, request: httpx.Request, take: Take) -> Head:
        """Send a GET and hand its answer's body to `take`; raises also what that raises."""
        line = _Line(_place(request))
        return await self._in_thread(line, lambda: self._fetched(line, request, take))

    async def aclose(self) -> None:
        """End the connections that nobody uses."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for line in idle:
            line.close()
        self._threads.shutdown(wait=False)

    async def _in_thread(self, line: _Line, work: Callable[[], Result]) -> Result:
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            with self._lock:
                line.end()
            working.add_done_callback(lambda _: line.close())  # it may have succeeded all the same
            await asyncio.wait([working])
            if not working.cancelled():
                working.exception()  # of a connection that was ended here, which is of no interest
            raise

    # --- in a thread --------------------------------------------------------------------------------------------

    def _answered(self, line: _Line, request: httpx.Request) -> httpx.Response:
        with line.closed_after_failure():
            answer = self._ask(line, request)
            stream: httpx.AsyncByteStream
            if answer.length is not None and answer.length <= _AT_ONCE:
                stream = self._short(line, answer)
            else:
                stream = _Rest(self, line, answer)
        return httpx.Response(answer.status, headers=answer.getheaders(), stream=stream, request=request)

    def _short(self, line: _Line, answer: http.client.HTTPResponse) -> httpx.AsyncByteStream:
        """The body at once. Whoever reads it hears that it broke off: a server that sent a head is not away."""
        try:
            with _network_errors(httpx.ReadError):
                content = answer.read()
        except httpx.TransportError as error:
            line.close()
            return _Broken(error)
        self._keep(line, answer)
        return httpx.ByteStream(content)

    def _fetched(self, line: _Line, request: httpx.Request, take: Take) -> Head:
        with line.closed_after_failure():
            answer = self._ask(line, request)
            headers = httpx.Headers(answer.getheaders())
            if answer.status != httpx.codes.OK:
                with _network_errors(httpx.ReadError):
                    refusal = answer.read(LEAST_BYTES)
                line.close()
                return Head(status=answer.status, headers=headers, refusal=refusal)
            announced, received = answer.length, 0
            buffer = memoryview(bytearray(_BUFFER_BYTES))
            while True:
                with _network_errors(httpx.ReadError):
                    count = answer.readinto(buffer)
                if not count:
                    break
                received += count
                take(buffer[:count])
            if announced is not None and received < announced:
                raise httpx.RemoteProtocolError(f"the answer ended after {received} of {announced} bytes")
            self._keep(line, answer)
            return Head(status=answer.status, headers=headers)

    def _ask(self, line: _Line, request: httpx.Request) -> http.client.HTTPResponse:
        """Send a request, over a connection that is there already if there is one; the head of the answer."""
        self._reuse(line)
        with _network_errors(httpx.ConnectError):
            if line.wire is None:
                line.connect(self._tls)
        try:
            line.send(request)
        except OSError as error:
            if not isinstance(error, TimeoutError):
                # Who refuses a body early answers, and then closes the connection.
                with contextlib.suppress(OSError, http.client.HTTPException):
                    return line.last_words(request.method, self._read_seconds)
            raise httpx.WriteError(str(error)) from error
        with _network_errors(httpx.ReadError):
            return line.head(request.method, self._read_seconds)

    def _reuse(self, line: _Line) -> None:
        """Have `line` go on over a connection to the same place that is still good."""
        while True:
            with self._lock:
                found = next((one for one in reversed(self._idle) if one.place == line.place), None)
                if found is None:
                    return
                self._idle.remove(found)
            if found.is_good():
                line.take_over(found)
                return
            found.close()

    def _keep(self, line: _Line, answer: http.client.HTTPResponse) -> None:
        """Whose answer was read to its end, for the next request."""
        with self._lock:  # from here on it is another request's, whatever becomes of this one
            if not (answer.will_close or self._is_closed) and (left := line.left()) is not None:
                self._idle.append(left)
                return
        line.close()


@dataclass(slots=True, eq=False)
class _Line:
    """A connection. place: host and port. wire: None where there is none yet. ended: by another thread."""

    place: tuple[str, int]
    wire: socket.socket | None = None
    ended: bool = False
    _answer: http.client.HTTPResponse | None = None
    _idle_since: float = 0.0

    def connect(self, tls: ssl.SSLContext) -> None:
        """Raises OSError."""
        host, port = self.place
        failures: list[OSError] = []
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            raw = self._hold(socket.socket(family, kind, protocol))
            try:
                raw.settimeout(_CONNECT_SECONDS)
                raw.connect(address)
            except OSError as error:
                raw.close()
                failures.append(error)
                continue
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The handshake comes after it is held, so that it can be ended as well.
            wire = self._hold(tls.wrap_socket(raw, server_hostname=host, do_handshake_on_connect=False))
            wire.do_handshake()
            return
        raise failures[-1]

    def _hold(self, wire: Wire) -> Wire:
        self.wire = wire
        if self.ended:
            wire.close()
            raise ConnectionAbortedError("the request was given up")
        return wire

    def take_over(self, other: _Line) -> None:
        """Go on over another one's connection."""
        if other.wire is not None:
            self._hold(other.wire)

    def send(self, request: httpx.Request) -> None:
        """Raises OSError."""
        wire = self._open()
        wire.settimeout(_WRITE_SECONDS)
        lines = [f"{request.method} {request.url.raw_path.decode('ascii')} HTTP/1.1".encode("ascii")]
        lines += [name + b": " + value for name, value in request.headers.raw]
        head = b"\r\n".join([*lines, b"", b""])
        octets: memoryview | None = request.extensions.get(OCTETS)
        if octets is None:
            wire.sendall(head + request.content)
            return
        wire.sendall(head)
        for start in range(0, octets.nbytes, _WRITE_BYTES):
            wire.sendall(octets[start : start + _WRITE_BYTES])

    def head(self, method: str, seconds: float) -> http.client.HTTPResponse:
        """The head of the answer. Raises OSError, and HTTPException for what is none."""
        wire = self._open()
        wire.settimeout(seconds)
        self._answer = answer = http.client.HTTPResponse(wire, method=method)
        answer.begin()
        return answer

    def last_words(self, method: str, seconds: float) -> http.client.HTTPResponse:
        """The same of a connection that is good for nothing else any more."""
        answer, self.ended = self.head(method, seconds), True
        return answer

    def _open(self) -> socket.socket:
        if self.wire is None:
            raise ConnectionAbortedError("the connection is closed")
        return self.wire

    def left(self) -> _Line | None:
        """What others can go on with, unless it was ended; this one is of no more use."""
        if self.ended or self.wire is None:
            return None
        left = _Line(self.place, self.wire, _idle_since=time.monotonic())
        self.wire = self._answer = None
        return left

    def is_good(self) -> bool:
        """Whether the server has not ended it: one that nobody asked anything has nothing else to say."""
        if self.wire is None or time.monotonic() - self._idle_since > _IDLE_SECONDS:
            return False
        waiting = select.poll()
        waiting.register(self.wire, select.POLLIN)
        return not waiting.poll(0)

    def end(self) -> None:
        """Have the thread that uses it fail; for other threads."""
        self.ended = True
        if self.wire is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.wire, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of it."""
        if self._answer is not None:  # it holds on to the socket
            self._answer.close()
        if self.wire is not None:
            self.wire.close()

    @contextlib.contextmanager
    def closed_after_failure(self) -> Iterator[None]:
        """Close it when the block fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise


class _Rest(httpx.AsyncByteStream):
    """The body of a long answer, a piece at a time."""

    def __init__(self, transport: DirectTransport, line: _Line, answer: http.client.HTTPResponse) -> None:
        self._transport = transport
        self._line = line
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self._transport._in_thread(self._line, self._read):
            yield piece
        if self._answer.length:
            raise httpx.RemoteProtocolError(f"the answer ended {self._answer.length} bytes too early")
        self._transport._keep(self._line, self._answer)

    def _read(self) -> bytes:
        with self._line.closed_after_failure(), _network_errors(httpx.ReadError):
            return self._answer.read(_BUFFER_BYTES)

    async def aclose(self) -> None:
        """Nobody wants more of it."""
        self._line.close()


class _Broken(httpx.AsyncByteStream):
    """A body that did not come whole."""

    def __init__(self, error: httpx.TransportError) -> None:
        self._error = error

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise self._error


def _place(request: httpx.Request) -> tuple[str, int]:
    return request.url.host, request.url.port or 443


@contextlib.contextmanager
def _network_errors(kind: type[httpx.TransportError]) -> Iterator[None]:
    """Errors of the connection as those that httpx raises."""
    try:
        yield
    except http.client.HTTPException as error:
        raise httpx.RemoteProtocolError(f"{error!r}") from error
    except OSError as error:
        raise kind(str(error)) from error
