"""Dependencies of routes: the services, the caller, and the exchange that the address names.

All dependencies are coroutines, although most of them wait for nothing: FastAPI sends others through a pool of threads,
which costs more than they do.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Path, Query, Request, Response

from fedcore.errors import Unauthorized
from fedcore.federation.transcript import TranscriptOut
from fedcore.wire.problems import ProblemKind
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.group_assignment import DrawExchange
from server_app.exchanges.receiver import no_such_step
from server_app.exchanges.secure import SecureExchange
from server_app.http.authentication import ClientCaller
from server_app.http.connection_limiter import CONNECTION_KEY, ConnectionState
from server_app.http.guard import SCOPE_KEY, GuardedRequest
from server_app.http.problems import problem_responses
from server_app.members.sessions import LoginSessions
from server_app.polling import HungUp, poll, while_connected
from server_app.rejection import Rejection
from server_app.runs.files.offers import AppOffers
from server_app.runs.leadership import Leadership
from server_app.runs.queue import RunQueue
from server_app.services import Services

T = TypeVar("T")
_BEHIND_PROXY_SECONDS: Final = 10.0
"""The longest that a request waits which a proxy brought: the proxy cannot tell a long wait from a frozen server."""
Wait = Annotated[float, Query(ge=0, le=30, description="seconds to wait for an answer")]
RunId = Annotated[str, Path(min_length=1, max_length=64)]
RecordHash = Annotated[str, Query(pattern=r"^([0-9a-f]{64})?$", description="hash of the last record that is known")]
After = Annotated[int, Query(ge=0, le=2**31 - 1, description="number of the last event that is known")]
ExchangeNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]

OF_CLIENTS: Final = problem_responses(
    ProblemKind.UNAUTHORIZED,
    ProblemKind.WRONG_CLOCK,
    ProblemKind.REVOKED,
    ProblemKind.MALFORMED,
    ProblemKind.DIGEST_MISMATCH,
    ProblemKind.TOO_LARGE,
    ProblemKind.BUSY,
)
"""What every signed request may be refused for."""


def of_app(name: str, kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """A dependency: what the application holds under this name for all of its requests."""

    async def value(request: Request) -> T:
        return _state_of(request, name, kind)

    return value


def _state_of(request: Request, name: str, kind: type[T]) -> T:
    value = getattr(request.app.state, name)
    assert isinstance(value, kind)  # noqa: S101 - set when the application is made
    return value


def guarded_request(request: Request) -> GuardedRequest:
    """What the guard knows about this request."""
    guarded = request.scope[SCOPE_KEY]
    assert isinstance(guarded, GuardedRequest)  # noqa: S101 - the guard wraps the whole application
    return guarded


async def signed_head(request: Request) -> ClientCaller:
    """The client that signed the head; the body's digest is for the route to check."""
    caller = guarded_request(request).caller
    if caller is None:
        raise Unauthorized("this address needs a client's signature")
    _state_of(request, "services", Services).presence.touch(caller.client_id)
    return caller


async def signed_client(request: Request) -> ClientCaller:
    """The client that signed the head and, by its digest, the whole body."""
    caller = await signed_head(request)
    if hashlib.sha256(await request.body()).digest() != caller.content_sha256:
        raise Rejection(ProblemKind.DIGEST_MISMATCH, "the body does not have the SHA-256 that was signed")
    return caller


AnyServices = Annotated[Services, Depends(of_app("services", Services))]
AnyOffers = Annotated[AppOffers, Depends(of_app("offers", AppOffers))]
AnyQueue = Annotated[RunQueue, Depends(of_app("queue", RunQueue))]
AnySessions = Annotated[LoginSessions, Depends(of_app("sessions", LoginSessions))]
AnyLeadership = Annotated[Leadership, Depends(of_app("leadership", Leadership))]
Client = Annotated[ClientCaller, Depends(signed_client)]
ClientHead = Annotated[ClientCaller, Depends(signed_head)]


def json_response(message: object | None) -> Response:
    """A message as JSON; 204 for None."""
    if message is None:
        return Response(status_code=204)
    text = message.model_dump_json()  # type: ignore[attr-defined]
    return Response(text, media_type="application/json")


@dataclass(frozen=True, slots=True)
class LongPoll:
    """A request that a client lets wait for its answer; meanwhile it is known to be there."""

    request: Request
    services: Services
    client: int
    seconds: float

    async def answer(self, probe: Callable[[], T | None]) -> T | None:
        """What `probe` says in time, None for nothing; raises HungUp when the client's connection ends.

        The client is then absent until it says something: a leader that none reaches has to notice it soon.
        """
        if (answer := probe()) is not None or not self.seconds:
            return answer
        try:
            async with while_connected(self.request.receive):
                with self.services.presence.polling(self.client), self._noticing_dead_line():
                    return await poll(self.services.client_bell, probe, self.seconds)
        except HungUp:
            self.services.presence.note_hangup(self.client)
            raise

    def _noticing_dead_line(self) -> contextlib.AbstractContextManager[None]:
        connection: ConnectionState | None = self.request.scope.get(CONNECTION_KEY)
        return connection.waiting() if connection is not None else contextlib.nullcontext()

    async def respond(self, probe: Callable[[], object | None]) -> Response:
        """What `probe` says in time, as a response; 204 if that is nothing, or the client has hung up."""
        try:
            return json_response(await self.answer(probe))
        except HungUp:
            return json_response(None)


async def long_poll_of(request: Request, services: AnyServices, client: Client, wait: Wait = 0) -> LongPoll:
    """The request as one that waits; its body has been read."""
    if "x-forwarded-for" in request.headers:
        wait = min(wait, _BEHIND_PROXY_SECONDS)
    return LongPoll(request, services, client.client_id, wait)


AnyPoll = Annotated[LongPoll, Depends(long_poll_of)]


async def records_after(services: Services, known: str) -> TranscriptOut:
    """A part of the transcript; Rejection if it does not contain the record that is named."""
    records = await services.store.records_after(known)
    if records is None:
        raise Rejection(ProblemKind.NOT_FOUND, "the transcript does not contain a record of that hash")
    return records


async def _find(request: Request, run: str, number: int, client: int, queue: RunQueue) -> Exchange:
    exchange = await queue.find_exchange(run, number, client)
    guarded_request(request).count_bytes = exchange.usage.byte_counter(client)
    return exchange


async def exchange_of(
    request: Request,
    run: RunId,
    exchange: ExchangeNumber,
    client: Client,
    queue: AnyQueue,
) -> Exchange:
    """The exchange in the address, of any kind; its bytes are counted."""
    return await _find(request, run, exchange, client.client_id, queue)


async def upload_exchange_of(
    request: Request,
    run: RunId,
    exchange: ExchangeNumber,
    client: ClientHead,
    queue: AnyQueue,
) -> Exchange:
    """The exchange in the address, for a request whose body is still to be read."""
    return await _find(request, run, exchange, client.client_id, queue)


async def secure_exchange_of(exchange: Annotated[Exchange, Depends(exchange_of)]) -> SecureExchange:
    """The exchange in the address, which must be a secure one."""
    if not isinstance(exchange, SecureExchange):
        raise no_such_step(exchange.task.aggregation)
    return exchange


async def draw_of(exchange: Annotated[Exchange, Depends(exchange_of)]) -> DrawExchange:
    """The exchange in the address, which must be a draw."""
    if not isinstance(exchange, DrawExchange):
        raise no_such_step(exchange.task.aggregation)
    return exchange


AnyExchange = Annotated[Exchange, Depends(exchange_of)]
UploadExchange = Annotated[Exchange, Depends(upload_exchange_of)]
Draw = Annotated[DrawExchange, Depends(draw_of)]
Secure = Annotated[SecureExchange, Depends(secure_exchange_of)]
