"""Large answers over a connection of their own, which a thread reads straight into one buffer.

TLS hands out records of 16 KiB. Through the event loop and httpx's layers each of them costs more Python than
decryption: 40 MB were measured to take 0.23 processor seconds there and 0.04 here.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import httpx

LEAST_BYTES: Final = 1 << 20
"""A smaller answer is not worth a connection, which costs a TLS handshake."""
_CONNECT_SECONDS: Final = 10.0
_BUFFER_BYTES: Final = 1 << 20
_REFUSAL_BYTES: Final = 1 << 20

Take = Callable[[memoryview], None]
"""What becomes of the next bytes of the body; called in the thread, and the bytes are gone after it."""


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


async def fetch(request: httpx.Request, tls: ssl.SSLContext, take: Take, *, read_seconds: float) -> Head:
    """Send a GET and hand its answer's body to `take`; raises httpx.TransportError, and what `take` raises.

    Cancelled, it ends the connection and waits for the thread.
    """
    url = request.url
    connection = http.client.HTTPSConnection(url.host, url.port or 443, context=tls, timeout=_CONNECT_SECONDS)
    lines: list[socket.socket] = []  # http.client forgets its socket when the answer's head is read
    reading = asyncio.ensure_future(asyncio.to_thread(_fetch, connection, request, take, read_seconds, lines))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        await asyncio.wait([reading])
        reading.exception()  # of a connection that was ended here, which is of no interest
        raise


def _fetch(
    connection: http.client.HTTPSConnection,
    request: httpx.Request,
    take: Take,
    read_seconds: float,
    lines: list[socket.socket],
) -> Head:
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(connection))
        with _network_errors(httpx.ConnectError):
            connection.connect()
        with _network_errors(httpx.ReadError):
            lines.append(connection.sock)
            connection.sock.settimeout(read_seconds)
            _send(connection, request)
            response = stack.enter_context(contextlib.closing(connection.getresponse()))
        headers = httpx.Headers(response.getheaders())
        if response.status != httpx.codes.OK:
            with _network_errors(httpx.ReadError):
                return Head(status=response.status, headers=headers, refusal=response.read(_REFUSAL_BYTES))
        announced, received = response.length, 0
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        while True:
            with _network_errors(httpx.ReadError):
                count = response.readinto(buffer)
            if not count:
                break
            received += count
            take(buffer[:count])
        if announced is not None and received < announced:
            raise httpx.RemoteProtocolError(f"the answer ended after {received} of {announced} bytes")
        return Head(status=response.status, headers=headers)


def _send(connection: http.client.HTTPSConnection, request: httpx.Request) -> None:
    target = request.url.raw_path.decode("ascii")
    connection.putrequest(request.method, target, skip_host=True, skip_accept_encoding=True)
    for name, value in request.headers.items():
        connection.putheader(name, "close" if name == "connection" else value)
    connection.endheaders()


@contextlib.contextmanager
def _network_errors(kind: type[httpx.TransportError]) -> Iterator[None]:
    """Errors of the connection as those that httpx raises."""
    try:
        yield
    except OSError as error:
        raise kind(str(error)) from error
    except http.client.HTTPException as error:
        raise httpx.RemoteProtocolError(f"{error!r}") from error
