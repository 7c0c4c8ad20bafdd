"""HTTPS to the server: every request signed, every answer bounded, every failure told apart.

A request that nobody answered, or that was answered with a 5xx, is sent again after a growing, jittered pause, with a
new signature each time; all routes are idempotent. A 4xx but 408 is an answer and never repeated. A federation may have
several addresses: where nobody answers, or somebody who does not lead, the next attempt goes to the next one.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import urlsplit

import httpx
import pydantic
import tenacity

from client_app.direct import LEAST_BYTES, OCTETS, DirectTransport, reaches_directly
from client_app.http import AWAY, Handshake, is_away, leads_elsewhere, may_pass, refusal, unanswered
from client_app.output import clean
from client_app.patience import Patience, Retry
from fedcore.errors import ProtocolViolation, Refused, ServerUnreachable, WrongClock
from fedcore.federation import ClientKit
from fedcore.http_signing import sign_headers
from fedcore.secagg import Signer
from fedcore.system.concurrency import in_thread
from fedcore.system.files import full_disk_named, replacing
from fedcore.wire import DELTA_BASE, Message

CHUNK: Final = 1 << 20
_PIECE: Final = 1 << 18
"""Of a model; what has come of it is counted in these."""
MAX_CONTROL_BYTES: Final = 64 << 20
"""Largest JSON answer: the sealed shares of a cohort of 10,000 have some 40 MiB."""
LONG_POLL_SECONDS: Final = 25
_READ_SECONDS: Final = LONG_POLL_SECONDS + 20.0
_PARSED_AT_ONCE: Final = 1 << 16
"""Bytes of an answer up to which it is parsed on the event loop; of more, in a thread."""
_EMPTY_DIGEST: Final = hashlib.sha256(b"").digest()
_JSON: Final = {"content-type": "application/json"}
_OCTETS: Final = {"content-type": "application/octet-stream"}

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")
SignRequest = Callable[[str, str, bytes], Mapping[str, str]]
"""(method, path and query, SHA-256 of the body) -> the headers that sign them."""


@dataclass(slots=True)
class ByteCount:
    """Bytes sent and received, bodies and headers, without what TLS adds."""

    up: int = 0
    down: int = 0


class _Incoming:
    """A file that is being received: written, hashed and counted as it comes. size: the most that it may have."""

    def __init__(self, file: BinaryIO, size: int, traffic: ByteCount) -> None:
        self.digest = hashlib.sha256()
        self._file = file
        self.received = 0
        self._left = size
        self._traffic = traffic

    def take(self, chunk: memoryview) -> None:
        """The next bytes; raises ProtocolViolation("model-digest") where they are more than there can be."""
        self.received += len(chunk)
        self._left -= len(chunk)
        self._traffic.down += len(chunk)
        if self._left < 0:
            raise ProtocolViolation("model-digest", "the model is longer than announced")
        self.digest.update(chunk)
        self._file.write(chunk)


def signer(
    kit: ClientKit,
    *,
    identity: Signer | None = None,
    clock: Callable[[], float] = time.time,
    nonce: Callable[[], str] = lambda: uuid.uuid4().hex,
) -> SignRequest:
    """Signs requests as the kit's client, each with a nonce of its own; with `identity` instead of the kit's key."""
    key_id, key = f"client-{kit.client_id}", identity or kit.identity

    def sign(method: str, target: str, content_sha256: bytes) -> dict[str, str]:
        return sign_headers(method, target, content_sha256, key_id=key_id, key=key, now=int(clock()), nonce=nonce())

    return sign


class Transport:
    """A connection pool to the server of a federation; use as an async context manager.

    Raises everywhere: ServerUnreachable when nobody answers in time, Unauthorized when another certificate or no TLS is
    shown or the server does not accept the signature, Refused for any other problem document, ProtocolViolation
    ("malformed") for an answer that is none.

    urls: where the server is found, in the order of preference. notice: told once for each request that is sent again,
    and why. clock: monotonic seconds, for the patience. sleep: waits that many seconds between two attempts.
    interruptions: how often a server was away. It may be another one, or a new one, that answers next.
    """

    def __init__(
        self,
        *,
        urls: Sequence[str],
        tls: ssl.SSLContext,
        sign: SignRequest,
        retry: Retry | None = None,
        notice: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._urls = tuple(urls)
        self._at = 0
        self._answers = 0
        self._incoming: _Incoming | None = None
        self.interruptions = 0
        self.traffic = ByteCount()
        self._notice = notice
        self._clock = clock
        self._sleep = sleep
        self._sign = sign
        self._retry = retry or Retry()
        # Proxy settings of the environment are for the way out of a site, not for the loopback.
        trust_env = not all(map(_is_loopback, urls))
        is_direct = all(reaches_directly(httpx.URL(url), trust_env=trust_env) for url in urls)
        self._direct = DirectTransport(tls, read_seconds=_READ_SECONDS) if is_direct else None
        self._client = httpx.AsyncClient(
            transport=self._direct,
            verify=tls,
            trust_env=trust_env,
            timeout=httpx.Timeout(30.0, connect=10.0, read=_READ_SECONDS),
            headers={"accept-encoding": "identity", "user-agent": "fedcore-client"},
        )

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    @property
    def url(self) -> str:
        """Where the next request goes."""
        return self._urls[self._at]

    def sign_with(self, sign: SignRequest) -> None:
        """Sign all further requests so; the client's key was replaced."""
        self._sign = sign

    async def get(
        self,
        path: str,
        answer: type[Answer],
        *,
        wait: float | None = None,
        retry: Retry | None = None,
        limit: int | None = None,
        read: Callable[[bytes], Answer] | None = None,
        hear: Callable[[httpx.Headers], None] | None = None,
        **query: str | int,
    ) -> Answer | None:
        """GET a control message; None for 204.

        wait: how many seconds the server may hold the request. limit: bytes of the answer, where that is less than of
        others. read: makes the message of them, where that is done in another way. hear: gets the head of the answer.
        """
        if wait is not None:
            query["wait"] = f"{wait:g}"
        target = f"{path}?{httpx.QueryParams(query)}" if query else path
        return await _parse(answer, path, await self._exchange("GET", target, b"", retry, limit, hear), read)

    async def put(self, path: str, message: Message, answer: type[Answer], *, wait: float) -> Answer | None:
        """PUT a control message; the answer may be what it leads to, which the server awaits for `wait` seconds."""
        target = f"{path}?{httpx.QueryParams(wait=f'{wait:g}')}"
        return await _parse(answer, path, await self._exchange("PUT", target, message.model_dump_json().encode(), None))

    async def send(self, method: str, path: str, message: Message, *, retry: Retry | None = None) -> None:
        """PUT or POST a control message whose answer does not matter."""
        await self._exchange(method, path, message.model_dump_json().encode(), retry)

    async def ask(
        self, method: str, path: str, message: Message, answer: type[Answer], *, retry: Retry | None = None
    ) -> Answer:
        """PUT or POST a control message and return the answer.

        What the message has nothing to say of is left out, since a server of before may not know of it.
        """
        body = await self._exchange(method, path, message.model_dump_json(exclude_none=True).encode(), retry)
        parsed = await _parse(answer, path, body)
        if parsed is None:
            raise ProtocolViolation("malformed", f"the server answered {method} {_public(path)} with nothing")
        return parsed

    async def put_octets(
        self, path: str, content: memoryview, *, sha256: bytes, is_there: Callable[[], Awaitable[bool]]
    ) -> None:
        """PUT bytes whose SHA-256 is `sha256`, streamed.

        `is_there` is asked before every further attempt; True ends it. It also gets to hear a refusal: a server that
        refuses a body early resets the connection, and then its reason is lost, unless a small request asks for it.
        """
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            if attempts > 1 and await is_there():
                return
            headers = {**_OCTETS, "content-length": str(content.nbytes)}
            async with self._open("PUT", path, sha256, headers, _Octets(content)) as response:
                self.traffic.up += content.nbytes
                await self._body_of(response)

        await self._repeat(attempt, None)

    async def download(self, path: str, target: Path, *, size: int, sha256: str, base: str = "") -> bool:
        """GET a model into `target`, which stays as it is unless the bytes have the announced digest.

        base: the SHA-256 of a model that is here. True where the difference to that came in the place of the model: it
        is in `target`, and only the model that it makes can be checked. Raises ProtocolViolation("model-digest") when
        the bytes are others than announced.
        """
        address = f"{path}?{httpx.QueryParams(base=base)}" if base else path

        async def attempt() -> bool:
            with replacing(target, mode=0o600) as file:
                self._incoming = incoming = _Incoming(file, size, self.traffic)
                if size >= LEAST_BYTES and self._direct is not None:
                    headers = await self._fetch_directly(self._direct, address, incoming)
                else:
                    headers = await self._fetch(address, incoming)
                is_difference = bool(base) and headers.get(DELTA_BASE) == f'"{base}"'
                if incoming.digest.hexdigest() != sha256 and not is_difference:
                    raise ProtocolViolation("model-digest", "the model is another than the one that was announced")
            return is_difference

        with full_disk_named(f"no space is left in {target.parent} for a model of {size} bytes"):
            try:
                return await self._repeat(attempt, None)
            finally:
                self._incoming = None

    @property
    def received(self) -> int | None:
        """Bytes that are here of the model that is being fetched; None where none is."""
        return self._incoming.received if self._incoming is not None else None

    async def _fetch(self, target: str, incoming: _Incoming) -> httpx.Headers:
        async with self._open("GET", target, _EMPTY_DIGEST, {}, None) as response:
            await self._check_status(response)
            async for chunk in response.aiter_raw(_PIECE):
                await in_thread(incoming.take, memoryview(chunk))
            return response.headers

    async def _fetch_directly(self, direct: DirectTransport, target: str, incoming: _Incoming) -> httpx.Headers:
        head = await direct.fetch(self._request("GET", target, _EMPTY_DIGEST, {}, None), incoming.take)
        self.traffic.down += _head_size(head.headers, 0) + len(head.refusal)
        self._answers += head.status not in AWAY
        if head.status != httpx.codes.OK:
            raise refusal(head.status, head.refusal, of="this client's signature")
        return head.headers

    async def _exchange(
        self,
        method: str,
        target: str,
        body: bytes,
        retry: Retry | None,
        limit: int | None = None,
        hear: Callable[[httpx.Headers], None] | None = None,
    ) -> bytes | None:
        digest = await asyncio.to_thread(_sha256, body) if len(body) > CHUNK else _sha256(body)

        async def attempt() -> bytes | None:
            headers = _JSON if body else {}
            async with self._open(method, target, digest, headers, body or None) as response:
                self.traffic.up += len(body)
                content = await self._body_of(response, limit)
                if hear is not None:
                    hear(response.headers)
                return None if response.status_code == httpx.codes.NO_CONTENT else content

        return await self._repeat(attempt, retry)

    @asynccontextmanager
    async def _open(
        self, method: str, target: str, digest: bytes, headers: Mapping[str, str], content: Any
    ) -> AsyncIterator[httpx.Response]:
        """Send one signed request and yield its answer, of which only the head has been read."""
        request = self._request(method, target, digest, headers, content)
        response = await self._sent(request)
        try:
            self.traffic.down += _head_size(response.headers, 0)
            self._answers += response.status_code not in AWAY
            yield response
        finally:
            await response.aclose()

    async def _sent(self, request: httpx.Request) -> httpx.Response:
        """The head of the answer; redirects and cookies, of which there are none, took longer than the rest of this."""
        if self._direct is not None:
            return await self._direct.handle_async_request(request)
        return await self._client.send(request, stream=True)

    def _request(
        self, method: str, target: str, digest: bytes, headers: Mapping[str, str], content: Any
    ) -> httpx.Request:
        """A signed request, counted as sent."""
        request = self._client.build_request(
            method,
            self.url + target,
            headers=dict(headers),
            content=content,
            extensions={
                "trace": Handshake().trace,
                **({OCTETS: content.octets} if isinstance(content, _Octets) else {}),
            },
        )
        # Sign what is really sent: httpx normalises the target.
        request.headers.update(self._sign(method, request.url.raw_path.decode("ascii"), digest))
        self.traffic.up += _head_size(request.headers, len(request.url.raw_path))
        return request

    async def _body_of(self, response: httpx.Response, limit: int | None = None) -> bytes:
        await self._check_status(response)
        return await self._read_bounded(response, limit)

    async def _read_bounded(self, response: httpx.Response, limit: int | None = None) -> bytes:
        most = MAX_CONTROL_BYTES if limit is None else limit
        content = bytearray()
        async for chunk in response.aiter_raw(CHUNK):
            content += chunk
            self.traffic.down += len(chunk)
            if len(content) > most:
                raise ProtocolViolation("malformed", f"an answer is longer than {most >> 20} MiB")
        return bytes(content)

    async def _check_status(self, response: httpx.Response) -> None:
        """Turn a problem document into an exception."""
        if not response.is_success:
            body = await self._read_bounded(response)
            raise refusal(response.status_code, body, of="this client's signature")

    async def _repeat(self, attempt: Callable[[], Awaitable[Result]], retry: Retry | None) -> Result:
        rule = retry or self._retry
        patience = Patience(rule, self._clock, self._answers)
        url = self.url

        async def attempt_here() -> Result:
            nonlocal url
            url = self.url
            try:
                return await attempt()
            except (httpx.TransportError, Refused) as error:
                self._note_failure(url, error)
                raise

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_transient),
            wait=tenacity.wait_random_exponential(multiplier=rule.first_pause, max=rule.longest_pause),
            stop=lambda state: patience.ends(is_away(_error_of(state)), self._answers),
            sleep=self._sleep,
            before_sleep=lambda state: self._tell(state, url),
            reraise=True,
        )
        try:
            return await retrying(attempt_here)
        except httpx.TransportError as error:
            if patience.stuck and may_pass(error):
                raise ServerUnreachable(
                    f"the server at {url} answers, but one request does not get through to it ({clean(str(error))}); "
                    "does something between bound the size or the time of requests?",
                    check="stuck",
                ) from error
            raise unanswered(url, error) from error

    def _note_failure(self, url: str, error: Exception) -> None:
        """Go on to the next address, unless another request has already."""
        self.interruptions += is_away(error)
        if leads_elsewhere(error) and url == self.url:
            self._at = (self._at + 1) % len(self._urls)

    def _tell(self, state: tenacity.RetryCallState, url: str) -> None:
        if state.attempt_number > 1:
            return
        error = _error_of(state)
        reason = unanswered(url, error) if isinstance(error, httpx.TransportError) else error
        self._notice(f"{reason}; trying again")


def _error_of(state: tenacity.RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome is not None else None
    assert error is not None  # noqa: S101 - only failures are tried again
    return error


def _is_transient(error: BaseException) -> bool:
    """408: the line paused in the middle of a body until the server gave that up."""
    if isinstance(error, Refused):
        return error.status >= 500 or error.status == httpx.codes.REQUEST_TIMEOUT
    return may_pass(error) or isinstance(error, WrongClock)


async def _parse(
    answer: type[Answer], path: str, body: bytes | None, read: Callable[[bytes], Answer] | None = None
) -> Answer | None:
    if body is None:
        return None
    read = read or answer.model_validate_json
    try:
        return await in_thread(read, body) if len(body) > _PARSED_AT_ONCE else read(body)
    except pydantic.ValidationError as error:
        # The error's own text quotes what the server sent.
        places = ", ".join(sorted({".".join(map(str, item["loc"][:1])) for item in error.errors()}))
        raise ProtocolViolation(
            "malformed", f"the server's answer to {_public(path)} is no {answer.__name__} ({clean(places)})"
        ) from None
    except ValueError:
        raise ProtocolViolation("malformed", f"the server's answer to {_public(path)} is no JSON") from None


def _public(path: str) -> str:
    return path.rsplit("/", 1)[-1]


class _Octets:
    """A body in memory; where it has to go through a proxy, a chunk at a time, so that the whole is never copied."""

    def __init__(self, octets: memoryview) -> None:
        self.octets = octets

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, self.octets.nbytes, CHUNK):
            yield bytes(self.octets[start : start + CHUNK])


def _sha256(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _head_size(headers: httpx.Headers, target: int) -> int:
    """Size of an HTTP/1.1 head: the lines with their separators, and about 15 bytes of the first line."""
    return sum(len(name) + len(value) + 4 for name, value in headers.raw) + target + 17


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
