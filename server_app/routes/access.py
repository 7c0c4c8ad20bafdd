"""What every route needs: the services, the caller, and the exchange that the address names.

All dependencies are coroutines, although most of them wait for nothing: FastAPI sends others through a pool of threads,
which costs more than they do.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import Depends, Path, Query, Request

from fedcore.errors import Unauthorized
from fedcore.transcript import TranscriptOut
from fedcore.wire import ProblemKind
from server_app.exchanges.exchange import Exchange, no_such_step
from server_app.exchanges.secure import SecureExchange
from server_app.http.authentication import ClientCaller
from server_app.http.guard import SCOPE_KEY, GuardedRequest
from server_app.http.problems import Rejection
from server_app.runs.queue import RunQueue
from server_app.services import Services

Wait = Annotated[float, Query(ge=0, le=30, description="seconds to wait for an answer")]
RunId = Annotated[str, Path(min_length=1, max_length=64)]
RecordHash = Annotated[str, Query(pattern=r"^([0-9a-f]{64})?$", description="hash of the last record that is known")]
ExchangeNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]


async def services_of(request: Request) -> Services:
    """The process's services."""
    return _services(request)


def _services(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)  # noqa: S101 - set by the app's own lifespan
    return services


async def queue_of(request: Request) -> RunQueue:
    """The process's queue."""
    queue = request.app.state.queue
    assert isinstance(queue, RunQueue)  # noqa: S101 - set by the app's own lifespan
    return queue


def guarded_request(request: Request) -> GuardedRequest:
    """What the guard knows about this request."""
    found = request.scope[SCOPE_KEY]
    assert isinstance(found, GuardedRequest)  # noqa: S101 - the guard wraps the whole application
    return found


async def signed_head(request: Request) -> ClientCaller:
    """The client that signed the head; the body's digest is for the route to check."""
    caller = guarded_request(request).caller
    if caller is None:
        raise Unauthorized("this address needs a client's signature")
    _services(request).presence.touch(caller.client_id)
    return caller


async def signed_client(request: Request) -> ClientCaller:
    """The client that signed the head and, by its digest, the whole body."""
    caller = await signed_head(request)
    if hashlib.sha256(await request.body()).digest() != caller.content_sha256:
        raise Rejection(ProblemKind.DIGEST_MISMATCH, "the body does not have the SHA-256 that was signed")
    return caller


AnyServices = Annotated[Services, Depends(services_of)]
AnyQueue = Annotated[RunQueue, Depends(queue_of)]
Client = Annotated[ClientCaller, Depends(signed_client)]
ClientHead = Annotated[ClientCaller, Depends(signed_head)]


async def records_after(services: Services, known: str) -> TranscriptOut:
    """A part of the transcript; Rejection where it does not contain the record that is named."""
    found = await services.store.records_after(known)
    if found is None:
        raise Rejection(ProblemKind.NOT_FOUND, "the transcript does not contain a record of that hash")
    return found


async def _find(request: Request, run: str, exchange: int, client: int, queue: RunQueue) -> Exchange:
    found = await queue.find_exchange(run, exchange, client)
    guarded_request(request).count_bytes = found.usage.byte_counter(client)
    return found


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
    """The same, for a body that is still to be read."""
    return await _find(request, run, exchange, client.client_id, queue)


async def secure_exchange_of(exchange: Annotated[Exchange, Depends(exchange_of)]) -> SecureExchange:
    """The exchange in the address, which must be a secure one."""
    if not isinstance(exchange, SecureExchange):
        raise no_such_step(exchange.task.aggregation)
    return exchange


AnyExchange = Annotated[Exchange, Depends(exchange_of)]
UploadExchange = Annotated[Exchange, Depends(upload_exchange_of)]
Secure = Annotated[SecureExchange, Depends(secure_exchange_of)]
