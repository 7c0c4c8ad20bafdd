"""Transport over HTTPS: signed requests, bounded answers, classified failures.

A request that nobody answered, or that was answered with a 5xx, is sent again after a growing, jittered pause, with a
new signature each time; all routes are idempotent. A 4xx but 408 and 429 is an answer and never repeated. A federation
may have several addresses: if nobody answers, or somebody who does not lead, the next attempt goes to the next one; and
to the one that leads if the present one is silent (`LeaderWatch`).
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode

import tenacity
import urllib3

from client_app.http.answers import parse, public
from client_app.http.blocking_transport import BlockingTransport, HttpRequest, HttpResponse
from client_app.http.errors import (
    AWAY,
    ConnectionFailed,
    is_away,
    is_for_now,
    leads_elsewhere,
    may_pass,
    next_server,
    refusal,
    unanswered,
)
from client_app.http.leader_watch import LeaderWatch
from client_app.http.line_meter import LineMeter
from client_app.http.model_download import ModelDownload
from client_app.http.retry import Retry, RetryDeadline
from client_app.http.server_clock import ServerClock
from client_app.http.silence import PROBE_SECONDS, connect_seconds
from client_app.http.transport import Answer, ByteCount, SignRequest
from client_app.output import clean
from fedcore.errors import EnvironmentFailure, FedcoreError, ProtocolViolation, Refused, ServerUnreachable, WrongClock
from fedcore.federation import ClientKit
from fedcore.monitoring.line_speed import LineSpeed
from fedcore.secagg import Signer
from fedcore.system.concurrency import end
from fedcore.system.files import full_disk_named, replacing
from fedcore.system.network.proxies import is_loopback
from fedcore.system.tracing import Traces
from fedcore.wire.base import Message
from fedcore.wire.presence import DELTA_BASE, LEADER_PATH
from fedcore.wire.signing import sign_headers

MAX_CONTROL_BYTES: Final = 64 << 20
"""Largest JSON answer: the sealed shares of a cohort of 10,000 have some 40 MiB."""
_PIECE: Final = 1 << 16
"""Of an answer; what has come of a model is counted in these."""
_BODY_SECONDS: Final = 45.0
"""For the answer to a large body, and to its end: the server may have to store it elsewhere first."""
_HASHED_AT_ONCE: Final = 1 << 20
_EMPTY_DIGEST: Final = hashlib.sha256(b"").digest()
_COMMON: Final = {"accept-encoding": "identity", "user-agent": "fedcore-client"}
_JSON: Final = {"content-type": "application/json"}
_OCTETS: Final = {"content-type": "application/octet-stream"}

Result = TypeVar("Result")


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


class HttpTransport:
    """`Transport` over HTTPS to the addresses of a federation; use as an async context manager."""

    def __init__(
        self,
        *,
        urls: Sequence[str],
        tls: ssl.SSLContext,
        sign: SignRequest,
        retry: Retry | None = None,
        notice: Callable[[str], None] = lambda text: None,
        traces: Traces | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Connect to nobody yet.

        Args:
            urls: where the server is found, in the order of preference.
            tls: whom to trust.
            sign: signs each request.
            retry: how long requests are sent again that have no rule of their own.
            notice: gets a line for each request that is sent again, with the reason.
            traces: give requests their headers.
            clock: monotonic seconds, for the deadlines.
            sleep: waits that many seconds between two attempts.
        """
        self.interruptions = 0
        self.traffic = ByteCount()
        self.retry = retry or Retry()
        self.notice = notice
        self._traces = traces or Traces()
        self._urls = tuple(urls)
        self._server_clock = ServerClock(notice)
        self._at = 0
        self._answers = 0
        self._counting = threading.Lock()
        self._incoming: ModelDownload | None = None
        self._meter = LineMeter(time.monotonic)
        self._clock = clock
        self._sleep = sleep
        self._sign = sign
        # Proxy settings of the environment are for the way out of a site, not for the loopback.
        trust_env = not all(map(is_loopback, urls))
        self._network = BlockingTransport(
            tls, read_seconds=_BODY_SECONDS, trust_env=trust_env, connect_seconds=connect_seconds(len(self._urls))
        )
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HttpTransport:
        if len(self._urls) > 1:
            watch = LeaderWatch(
                urls=self._urls,
                current=lambda: self.url,
                waiting=lambda: self._network.waiting,
                leads=self._leads,
                switch=self._switch,
            )
            self._watch = asyncio.create_task(watch.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            await end(self._watch)
        self._network.close()

    @property
    def url(self) -> str:
        """Where the next request goes."""
        return self._urls[self._at]

    @property
    def received(self) -> int | None:
        """Bytes that are here of the model that is being downloaded; None if none is."""
        return self._incoming.received if self._incoming is not None else None

    @property
    def line(self) -> LineSpeed:
        """How fast the line is, by the transfers so far."""
        return self._meter.speed

    def sign_with(self, sign: SignRequest) -> None:
        """Sign all further requests with this; the client's key was replaced."""
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
        on_headers: Callable[[Mapping[str, str]], None] | None = None,
        **query: str | int,
    ) -> Answer | None:
        """GET a control message; None for 204."""
        silence = (retry or self.retry).answer_seconds + (wait or 0.0)
        if wait is not None:
            query["wait"] = f"{wait:g}"
        target = f"{path}?{urlencode(query)}" if query else path
        body = await self._exchange("GET", target, b"", retry, silence, limit, on_headers)
        return await parse(answer, path, body, read)

    async def put(
        self, path: str, message: Message, answer: type[Answer], *, wait: float, is_large: bool = False
    ) -> Answer | None:
        """PUT a control message; the answer may be what it leads to, which the server awaits for `wait` seconds."""
        target = f"{path}?{urlencode({'wait': f'{wait:g}'})}" if wait else path
        silence = wait + (_BODY_SECONDS if is_large else self.retry.answer_seconds)
        body = await self._exchange("PUT", target, message.model_dump_json().encode(), None, silence)
        return await parse(answer, path, body)

    async def send(self, method: str, path: str, message: Message, *, retry: Retry | None = None) -> None:
        """PUT or POST a control message whose answer does not matter."""
        silence = retry.answer_seconds if retry is not None else None
        await self._exchange(method, path, message.model_dump_json().encode(), retry, silence)

    async def ask(
        self, method: str, path: str, message: Message, answer: type[Answer], *, retry: Retry | None = None
    ) -> Answer:
        """PUT or POST a control message and return the answer."""
        silence = (retry or self.retry).answer_seconds
        body = await self._exchange(method, path, message.model_dump_json(exclude_none=True).encode(), retry, silence)
        parsed = await parse(answer, path, body)
        if parsed is None:
            raise ProtocolViolation("malformed", f"the server answered {method} {public(path)} with nothing")
        return parsed

    async def put_octets(
        self, path: str, content: memoryview, *, sha256: bytes, is_there: Callable[[], Awaitable[bool]]
    ) -> None:
        """PUT bytes, which are sent from where they lie."""
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            if attempts > 1 and await is_there():
                return
            with self._meter.uploading(content.nbytes):
                await self._request("PUT", path, content, sha256, _OCTETS, self._content_of)

        await self._repeat(attempt, None)

    async def download(self, path: str, target: Path, *, size: int, sha256: str, base: str = "") -> bool:
        """GET a model into a file; returns whether the difference to `base` came in its place."""
        address = f"{path}?{urlencode({'base': base})}" if base else path

        async def attempt(incoming: ModelDownload) -> bool:
            if not incoming.is_complete:
                receive = partial(self._receive, incoming)
                await self._request("GET", address, b"", _EMPTY_DIGEST, incoming.rest(), receive)
            is_difference = bool(base) and incoming.headers.get(DELTA_BASE) == f'"{base}"'
            if incoming.digest.hexdigest() != sha256 and not is_difference:
                raise ProtocolViolation("model-digest", "the model is not the one that was announced")
            return is_difference

        with full_disk_named(f"no space is left in {target.parent} for a model of {size} bytes"):
            try:
                with replacing(target, mode=0o600) as file:
                    self._incoming = incoming = ModelDownload(file, size)
                    return await self._repeat(partial(attempt, incoming), None, lambda: incoming.received)
            finally:
                self._incoming = None

    async def _exchange(
        self,
        method: str,
        target: str,
        body: bytes,
        retry: Retry | None,
        silence: float | None,
        limit: int | None = None,
        on_headers: Callable[[Mapping[str, str]], None] | None = None,
    ) -> bytes | None:
        hashed = await asyncio.to_thread(hashlib.sha256, body) if len(body) > _HASHED_AT_ONCE else hashlib.sha256(body)
        digest = hashed.digest()

        def receive(response: HttpResponse) -> tuple[bytes | None, Mapping[str, str]]:
            content = self._content_of(response, limit)
            return None if response.status == HTTPStatus.NO_CONTENT else content, response.headers

        async def attempt() -> bytes | None:
            content, headers = await self._request(
                method, target, body, digest, _JSON if body else {}, receive, silence
            )
            if on_headers is not None:
                on_headers(headers)
            return content

        return await self._repeat(attempt, retry)

    async def _request(
        self,
        method: str,
        target: str,
        body: bytes | memoryview,
        digest: bytes,
        headers: Mapping[str, str],
        receive: Callable[[HttpResponse], Result],
        silence: float | None = None,
        server: str = "",
    ) -> Result:
        """Send one signed request; what `receive` makes of its answer, in the thread that gets it.

        Args:
            method: of the request.
            target: path and query.
            body: what is sent.
            digest: its SHA-256.
            headers: further ones.
            receive: reads the answer.
            silence: seconds that an answer may make no progress; None for what is transferred at length.
            server: the address, in place of the present one.
        """
        server, size, began = server or self.url, memoryview(body).nbytes, time.monotonic()
        # Sign what is really sent: urllib3 normalises the target.
        url = urllib3.util.parse_url(server + target)
        try:
            signed = self._sign(method, url.request_uri, digest)
        except EnvironmentFailure as error:  # a token that was pulled, and may come back
            raise ConnectionFailed from error
        length = {"content-length": str(size)} if "content-type" in headers else {}
        headers = {"host": url.netloc or "", **_COMMON, **length, **headers, **self._traces.headers(target), **signed}
        request = HttpRequest(method=method, server=server, target=url.request_uri, headers=headers, body=body)

        def receive_any(response: HttpResponse) -> Result:
            head = _head_size(response.headers, 0)
            self._count(up=size, down=head, is_answer=response.status not in AWAY)
            seconds = time.monotonic() - began
            self._server_clock.note(response.headers, seconds)
            if silence == PROBE_SECONDS and server == self.url:
                self._meter.note_trip(seconds)
            if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                raise refusal(response.status, self._content_of(response), of="this client's signature")
            return receive(response)

        self._count(up=_head_size(headers, len(request.target)))
        return await self._network.send(request, receive_any, read_seconds=silence)

    def _receive(self, incoming: ModelDownload, response: HttpResponse) -> None:
        incoming.begin(response)
        began, before = time.monotonic(), incoming.received
        for piece in response.pieces(_PIECE):
            self._count(down=len(piece))
            incoming.take(piece)
        self._meter.note_download(incoming.received - before, time.monotonic() - began)

    def _content_of(self, response: HttpResponse, limit: int | None = None) -> bytes:
        most = MAX_CONTROL_BYTES if limit is None else limit
        content = bytearray()
        for piece in response.pieces(_PIECE):
            content += piece
            self._count(down=len(piece))
            if len(content) > most:
                raise ProtocolViolation("malformed", f"an answer is longer than {most >> 20} MiB")
        return bytes(content)

    def _count(self, *, up: int = 0, down: int = 0, is_answer: bool = False) -> None:
        """Several threads may call it."""
        with self._counting:
            self.traffic.up += up
            self.traffic.down += down
            self._answers += is_answer

    async def _repeat(
        self, attempt: Callable[[], Awaitable[Result]], retry: Retry | None, received: Callable[[], int] = int
    ) -> Result:
        rule = retry or self.retry
        deadline = RetryDeadline(rule, self._clock, self._answers)
        url = self.url

        async def attempt_here() -> Result:
            nonlocal url
            url = self.url
            try:
                return await attempt()
            except (ConnectionFailed, Refused) as error:
                self._note_failure(url, error)
                raise

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_transient),
            wait=tenacity.wait_random_exponential(multiplier=rule.first_pause, max=rule.longest_pause),
            stop=lambda state: deadline.expired(is_away(_error_of(state)), self._answers, received()),
            sleep=self._sleep,
            before_sleep=lambda state: self._notify(state, url),
            reraise=True,
        )
        try:
            return await retrying(attempt_here)
        except (ConnectionFailed, Refused) as error:
            if isinstance(error, Refused) and error.status != HTTPStatus.REQUEST_TIMEOUT:
                raise
            if deadline.stuck and (may_pass(error) or isinstance(error, Refused)):
                raise ServerUnreachable(
                    f"the server at {url} answers, but one request does not get through to it ({clean(str(error))}); "
                    "does a proxy in between limit the size or the time of requests?",
                    check="stuck",
                ) from error
            raise unanswered([url], error) from error

    def _note_failure(self, url: str, error: Exception) -> None:
        """Go on to the next address, or the leader's if the server named one, unless another request has already."""
        self.interruptions += is_away(error)
        if leads_elsewhere(error) and url == self.url:
            self._at = next_server(self._urls, self._at, error)

    async def _leads(self, url: str) -> bool:
        """Whether a server says that it leads."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._request(
                    "GET", LEADER_PATH, b"", _EMPTY_DIGEST, {}, self._content_of, PROBE_SECONDS, server=url
                )
        except Refused as refused:  # an earlier version leads that does not know the question
            return refused.status not in AWAY
        except (ConnectionFailed, FedcoreError, TimeoutError):
            return False
        return True

    def _switch(self, url: str, silent: Sequence[str]) -> None:
        """One server leads and others are silent: all that waits for those goes to the one that leads."""
        self._at = self._urls.index(url)
        self.interruptions += 1
        self.notice(f"the server at {' and '.join(silent)} does not answer, and the one at {url} leads; going on there")
        for other in silent:
            self._network.abort(other)

    def _notify(self, state: tenacity.RetryCallState, url: str) -> None:
        if state.attempt_number > 1:
            return
        error = _error_of(state)
        reason = unanswered([url], error) if isinstance(error, ConnectionFailed) else error
        self.notice(f"{reason}; trying again")


def _error_of(state: tenacity.RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome is not None else None
    assert error is not None  # noqa: S101 - only failures are tried again
    return error


def _is_transient(error: BaseException) -> bool:
    """408: the line paused in the middle of a body until the server gave that up."""
    if isinstance(error, Refused):
        return is_for_now(error) or error.status == HTTPStatus.REQUEST_TIMEOUT
    return may_pass(error) or isinstance(error, WrongClock)


def _head_size(headers: Mapping[str, str], target: int) -> int:
    """Size of an HTTP/1.1 head: the lines with their separators, and about 15 bytes of the first line."""
    return sum(len(name) + len(value) + 4 for name, value in headers.items()) + target + 17
