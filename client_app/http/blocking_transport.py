"""HTTP requests in threads, over urllib3's connections, for `HttpTransport`.

TLS hands out records of 16 KiB. Through an event loop each of them costs more Python than its decryption, and a request
with a small answer some 2 ms; a thread that blocks in a socket costs neither (docs/adr/0009). urllib3 speaks HTTP, TLS
and CONNECT. This module adds what an asyncio program needs: threads, idle connections, and the end of a cancelled
request. Nothing here knows what is asked, nor sends anything a second time.

What is large, models and updates, has connections of its own once several are open: from small messages of which one
was lost, TCP may take a line for slow (BBR needs half a minute on one of 300 ms to find out).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar, cast
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPSConnection, ProxyConfig

from client_app.http.errors import ConnectionFailed
from client_app.http.silence import ONLY_CONNECT_SECONDS
from fedcore.system.network.dead_lines import DEAD_SECONDS, PAUSE_SECONDS, notice_dead_line
from fedcore.system.network.proxies import proxy_of

_WRITE_SECONDS: Final = 30.0
_WRITE_BYTES: Final = 64 * 1024
"""What has to be sent within those: 17 kbit/s."""
_UNSENT_OPTION: Final = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_PROXY_BYTES_A_SECOND: Final = 32_000
"""Of a body that a proxy has taken at once, while a slow line carries it, and perhaps another: 500 kbit/s."""
_IDLE_SECONDS: Final = 60.0
"""The server ends connections that nobody has used for 75."""
_THREADS: Final = 16
"""An agent has half a dozen requests open at once, of which one or two wait for news."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """What is sent."""

    method: str
    server: str
    """Scheme, host and port."""
    target: str
    """Path and query, percent-encoded."""
    headers: Mapping[str, str]
    body: bytes | memoryview = b""


class HttpResponse:
    """An answer whose body is still to be read, in the thread that got it."""

    def __init__(self, response: urllib3.HTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.is_complete = False
        """Whether the body was read to its end."""

    def pieces(self, size: int) -> Iterator[bytes]:
        """The body as it was sent, `size` bytes at a time; raises ConnectionFailed if it breaks off.

        With each record of TLS by itself, to receive a model took a third more of the processor.
        """
        while True:
            with _network_errors():
                piece = self._response.read(size, decode_content=False)
            if not piece:
                break
            yield piece
        self.is_complete = True

    def close(self) -> None:
        """End the connection without reading the rest of the body."""
        self._response.close()


class BlockingTransport:
    """Sends requests in threads. Raises ConnectionFailed if the network fails, and ConfigurationError for its proxy.

    All methods are for the event loop that it was made in, so connections need no lock: one at a time has each of them.
    """

    def __init__(
        self,
        tls: ssl.SSLContext,
        *,
        read_seconds: float,
        trust_env: bool,
        connect_seconds: float = ONLY_CONNECT_SECONDS,
    ) -> None:
        """Open nothing yet.

        Args:
            tls: whom to trust.
            read_seconds: how long an answer may make no progress.
            trust_env: whether to use the proxy that the environment names.
            connect_seconds: for a socket to connect, and again for its handshake.
        """
        self._tls = tls
        self._read_seconds = read_seconds
        self._trust_env = trust_env
        self._connect_seconds = connect_seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="network")
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._is_closed = False

    async def send(
        self, request: HttpRequest, read: Callable[[HttpResponse], Result], *, read_seconds: float | None = None
    ) -> Result:
        """Send a request and return what `read` makes of the answer; raises also what that raises.

        `read` is called in the thread. A request that is cancelled ends its connection, and waits for its thread.

        Args:
            request: what is sent.
            read: reads the answer.
            read_seconds: how long an answer may make no progress, in place of the usual time, and a dead line is
                noticed sooner: for a request with a small body and answer.
        """
        connection = self._connection_to(request.server, is_large=read_seconds is None)
        seconds = read_seconds or self._read_seconds
        connection.dead_seconds = DEAD_SECONDS if read_seconds else PAUSE_SECONDS
        self._busy.add(connection)
        work = self._threads.submit(lambda: read(connection.exchange(request, seconds)))
        working = asyncio.wrap_future(work)
        working.add_done_callback(lambda over: self._release(connection, over))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            if not work.done():
                connection.abort()
            await asyncio.wait([working])
            raise

    def abort(self, server: str) -> None:
        """Have all requests to `server` fail that are under way."""
        for connection in self._busy:
            if connection.server == server:
                connection.abort()

    @property
    def waiting(self) -> Iterable[str]:
        """The servers on which requests are under way."""
        return {connection.server for connection in self._busy}

    def close(self) -> None:
        """End the connections: at once those that nobody uses, the others when their requests are over."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().dispose()
        self._threads.shutdown(wait=False)

    def _connection_to(self, server: str, *, is_large: bool) -> _Connection:
        """An idle connection that the server has not ended, if there is one; else a new one.

        Of several the newest that was used for the same kind of request.
        """
        by_use = sorted(self._idle, key=lambda one: (one.is_large == is_large, one.idle_since), reverse=True)
        for connection in by_use:
            if connection.server == server:
                self._idle.remove(connection)
                if connection.is_good:
                    connection.is_large |= is_large
                    return connection
                connection.dispose()
        proxy = proxy_of(server) if self._trust_env else None
        return _Connection(server, self._tls, proxy, self._connect_seconds, is_large=is_large)

    def _release(self, connection: _Connection, over: asyncio.Future[Result]) -> None:
        over.exception()  # of a request that was cancelled nobody asks for it
        self._busy.discard(connection)
        if connection.is_reusable and not self._is_closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.dispose()


class _Connection(HTTPSConnection):
    """A connection that another thread can abort at any time, even while it is being made."""

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext,
        proxy: urllib3.util.Url | None,
        seconds: float,
        *,
        is_large: bool,
    ) -> None:
        url = urlsplit(server)
        host, port = url.hostname or "", url.port or 443
        self.server = server
        self.is_large = is_large
        """Whether it has carried a large body or answer."""
        self._connect_seconds = seconds
        self._lock = threading.Lock()
        self._handle: socket.socket | None = None
        """The connection's socket again: TLS takes the first one for itself while it shakes hands."""
        self._is_aborted = False
        self._response: HttpResponse | None = None
        self.idle_since = 0.0
        self.dead_seconds = PAUSE_SECONDS
        """How long its line may be dead."""
        if proxy is None:
            super().__init__(host, port, timeout=seconds, ssl_context=tls)
            return
        trust = ProxyConfig(ssl.create_default_context(), False, None, None) if proxy.scheme == "https" else None
        super().__init__(
            proxy.host or "", proxy.port, timeout=seconds, ssl_context=tls, proxy=proxy, proxy_config=trust
        )
        login = urllib3.util.make_headers(proxy_basic_auth=unquote(proxy.auth)) if proxy.auth else None
        self.set_tunnel(host, port, headers=login, scheme=proxy.scheme or "http")

    # --- in a thread --------------------------------------------------------------------------------------------

    def exchange(self, request: HttpRequest, read_seconds: float) -> HttpResponse:
        """Send a request; the head of its answer."""
        self._response = None
        with _network_errors():
            if self.sock is None:
                self.connect()
            if self._handle is not None:
                notice_dead_line(self._handle, self.dead_seconds)
            try:
                self._write(request)
            except TimeoutError:
                raise
            except OSError as error:
                response = self._read_early_response(error, read_seconds)
            else:
                size = memoryview(request.body).nbytes if self.proxy is not None else 0
                self.timeout = read_seconds + size / _PROXY_BYTES_A_SECOND
                response = self.getresponse()
        self._response = HttpResponse(response)
        return self._response

    def _new_conn(self) -> socket.socket:
        """A socket as urllib3 opens it, which can be aborted before it is connected."""
        failures: list[OSError] = [ConnectionError("the name has no address")]
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._dns_host, self.port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                self._make_abortable(sock)
                sock.settimeout(self._connect_seconds)
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if _UNSENT_OPTION is not None:  # else the kernel takes megabytes, and a slow line's answer is late
                    sock.setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, _WRITE_BYTES)
            except OSError as error:
                sock.close()
                failures.append(error)
                continue
            return sock
        raise failures[-1]

    def _make_abortable(self, sock: socket.socket) -> None:
        with self._lock:
            if self._handle is not None:
                self._handle.close()
            self._handle = sock.dup()
            if self._is_aborted:
                raise ConnectionAbortedError("the request was cancelled")

    def _write(self, request: HttpRequest) -> None:
        body = memoryview(request.body)
        pieces = (body[start : start + _WRITE_BYTES] for start in range(0, body.nbytes, _WRITE_BYTES))
        self.timeout = _WRITE_SECONDS
        self.request(
            request.method,
            request.target,
            body=cast(Iterable[bytes], pieces) if body.nbytes else None,
            headers=request.headers,
            preload_content=False,
        )

    def _read_early_response(self, error: OSError, seconds: float) -> urllib3.HTTPResponse:
        """The answer of a server that refused a body before it had it all, and then closed the connection."""
        self._is_aborted = True  # good for nothing else
        self.timeout = seconds
        try:
            return self.getresponse()
        except (OSError, http.client.HTTPException):
            raise error from None

    # --- in the event loop --------------------------------------------------------------------------------------

    @property
    def is_reusable(self) -> bool:
        """Whether another request can go over it."""
        is_complete = self._response is not None and self._response.is_complete
        return is_complete and not self._is_aborted and not self.is_closed

    @property
    def is_good(self) -> bool:
        """Whether the server has not ended it: nobody asked it anything, so all that it can say is that."""
        return time.monotonic() - self.idle_since < _IDLE_SECONDS and self.is_connected

    def abort(self) -> None:
        """Have the thread that uses it fail."""
        with self._lock:
            self._is_aborted = True
            if self._handle is not None:
                with contextlib.suppress(OSError):
                    self._handle.shutdown(socket.SHUT_RDWR)

    def dispose(self) -> None:
        """Close it, when no thread uses it any more."""
        self.close()
        if self._response is not None:
            self._response.close()
        if self._handle is not None:
            self._handle.close()


@contextlib.contextmanager
def _network_errors() -> Iterator[None]:
    """Errors of the network as one kind, with the text of the first of them."""
    try:
        yield
    except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError) as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        raise ConnectionFailed(str(root) or type(root).__name__) from error
