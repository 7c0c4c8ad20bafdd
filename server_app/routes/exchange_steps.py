"""Routes for the clients of an exchange: its model, its steps, uploads and withdrawals. Every request is signed."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request, Response

from fedcore.wire.base import ClientId
from fedcore.wire.chunks import PART_BYTES
from fedcore.wire.problems import ProblemKind
from fedcore.wire.secagg import (
    AdvertisementIn,
    CohortOut,
    ConsistencyIn,
    DealingOut,
    DeliveryOut,
    KeySharesIn,
    SignaturesOut,
    SurvivorsOut,
    UnmaskIn,
)
from fedcore.wire.tasks import DrawTicketIn
from fedcore.wire.uploads import ManifestIn, PartsOut, WithdrawalReason, WithdrawIn
from server_app.exchanges.secure import SecureExchange
from server_app.http.audience import ForClients
from server_app.http.problems import problem_responses
from server_app.rejection import Rejection
from server_app.routes.access import (
    OF_CLIENTS,
    AnyExchange,
    AnyPoll,
    AnyServices,
    Client,
    ClientHead,
    Draw,
    Secure,
    UploadExchange,
    json_response,
)
from server_app.routes.files import OCTETS, DifferenceResponse, ModelResponse, OctetsResponse, body_chunks
from server_app.storage.blobs import Body

K = ProblemKind
SHA256_OR_NONE: Final = r"^([0-9a-f]{64})?$"

router = APIRouter(
    prefix="/v1/runs/{run}/exchanges/{exchange}",
    route_class=ForClients,
    tags=["client"],
    responses=OF_CLIENTS,
)
_ENDED = (K.NOT_FOUND, K.NOT_IN_COHORT, K.STALE_STEP, K.NOT_NEEDED, K.ROUND_FAILED)
_GET = problem_responses(*_ENDED, K.PROTOCOL_VIOLATION)
_PUT = problem_responses(
    *_ENDED,
    K.CONFLICT,
    K.MALFORMED,
    K.DIGEST_MISMATCH,
    K.PROTOCOL_VIOLATION,
    K.BAD_CONFIGURATION,
    K.STORAGE_FULL,
)
_NOT_YET: dict[int | str, dict[str, Any]] = {204: {"description": "Nothing yet; ask again"}}


@router.get(
    "/model",
    status_code=200,
    response_class=ModelResponse,
    responses={**_GET, 200: {"content": {OCTETS: {}}, "description": "safetensors"}},
)
async def model(
    exchange: AnyExchange,
    client: Client,
    base: Annotated[
        str, Query(pattern=SHA256_OR_NONE, description="SHA-256 of a model of the run that the client has")
    ] = "",
) -> OctetsResponse:
    """The global model that the exchange starts from; plain: all that this client is sent, as a record file.

    Where the server has it as a difference to `base`, or as the change that the last sum made to it, that comes in its
    place, and the header `Delta-Base` says so.
    """
    exchange.require(client.client_id)
    if base and (difference := exchange.difference_to(base)) is not None:
        size = (await asyncio.to_thread(difference.stat)).st_size
        exchange.transfers.start_download(client.client_id, size)
        return DifferenceResponse(difference, base)
    file = exchange.model_for(client.client_id)
    if file is None:
        raise Rejection(ProblemKind.NOT_FOUND, "this exchange has no model")
    exchange.transfers.start_download(client.client_id, file[1].size)
    return ModelResponse(*file)


@router.put("/place", status_code=204, responses=_PUT)
async def put_place(body: DrawTicketIn, exchange: Draw, client: Client) -> None:
    """The answer to a draw: the client's place among all, signed (`fedcore.run.groups`)."""
    await exchange.take_ticket(client.client_id, body, client.content_sha256)


@router.put("/advertisement", response_model=CohortOut, responses={**_PUT, **_NOT_YET})
async def put_advertisement(body: AdvertisementIn, exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """R0: the client's keys. Answers with U1 if it is known within `wait` seconds, which saves a request."""
    await exchange.take_step(client.client_id, "advertisement", body, client.content_sha256)
    return await waiting.respond(lambda: exchange.cohort_for(client.client_id))


@router.get("/cohort", response_model=CohortOut, responses={**_GET, **_NOT_YET})
async def cohort(exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """U1: everybody's keys."""
    return await waiting.respond(lambda: exchange.cohort_for(client.client_id))


@router.put("/key-shares", response_model=DeliveryOut, responses={**_PUT, **_NOT_YET})
async def put_key_shares(body: KeySharesIn, exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """R1: sealed shares for the others. Answers with U2 and this client's shares if they come within `wait` seconds."""
    await exchange.take_step(client.client_id, "key-shares", body, client.content_sha256)
    return await waiting.respond(lambda: exchange.delivery_for(client.client_id))


@router.get("/key-shares", response_model=DeliveryOut, responses={**_GET, **_NOT_YET})
async def key_shares(exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """U2, and the shares sealed for this client."""
    return await waiting.respond(lambda: exchange.delivery_for(client.client_id))


@router.get("/key-shares/{dealer}", responses=_GET)
async def dealing(exchange: Secure, client: Client, dealer: ClientId) -> DealingOut:
    """What another client signed about the shares that it dealt: the evidence for a complaint about them."""
    return exchange.dealing_for(client.client_id, dealer)


@router.put(
    "/update/parts/{index}",
    status_code=204,
    responses=_PUT,
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "4 MiB, the last part what is left; secure: of the masked vector, little-endian 64-bit "
            "words; plain: of the record file",
            "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_part(
    request: Request,
    exchange: UploadExchange,
    client: ClientHead,
    index: Annotated[int, Path(ge=0, le=2**31 - 1)],
    content_length: Annotated[int, Header(ge=1, le=PART_BYTES)],
) -> None:
    """R2: one part of the update, streamed to the disk."""
    body = Body(chunks=body_chunks(request), size=content_length, sha256=client.content_sha256)
    await exchange.take_part(client.client_id, index, body)


@router.get("/update/parts", responses=_PUT)
async def parts(
    exchange: AnyExchange,
    client: Client,
    size: Annotated[int, Query(ge=0, le=2**63 - 1, description="bytes of the update that the client sends")],
) -> PartsOut:
    """The parts that the server holds, for a client that goes on after a broken connection."""
    received = exchange.parts_of(client.client_id, size)
    return PartsOut(parts={index: sha256.hex() for index, sha256 in received.items()})


@router.put("/manifest", response_model=SurvivorsOut, responses={**_PUT, **_NOT_YET})
async def put_manifest(body: ManifestIn, exchange: AnyExchange, client: Client, waiting: AnyPoll) -> Response:
    """Ends the upload; in plain mode an error instead of a file is the whole reply.

    A secure exchange answers with U3 if it is known within `wait` seconds, which saves a request.
    """
    await exchange.take_manifest(client.client_id, body, client.content_sha256)
    if not waiting.seconds or not isinstance(exchange, SecureExchange):
        return json_response(None)
    secure = exchange
    return await waiting.respond(lambda: secure.survivors_for(client.client_id))


@router.get("/survivors", response_model=SurvivorsOut, responses={**_GET, **_NOT_YET})
async def survivors(exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """U3: whose vectors are in the sum."""
    return await waiting.respond(lambda: exchange.survivors_for(client.client_id))


@router.put("/consistency", response_model=SignaturesOut, responses={**_PUT, **_NOT_YET})
async def put_consistency(body: ConsistencyIn, exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """R3: the signature over the survivors. Answers with everybody's if they come within `wait` seconds."""
    await exchange.take_step(client.client_id, "consistency", body, client.content_sha256)
    return await waiting.respond(lambda: exchange.signatures_for(client.client_id))


@router.get("/consistency", response_model=SignaturesOut, responses={**_GET, **_NOT_YET})
async def consistency(exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """Everybody's signatures over the survivors."""
    return await waiting.respond(lambda: exchange.signatures_for(client.client_id))


@router.put("/unmask", status_code=204, responses=_PUT)
async def put_unmask(body: UnmaskIn, exchange: Secure, client: Client) -> None:
    """R4: the shares that remove the masks from the sum."""
    await exchange.take_step(client.client_id, "unmask", body, client.content_sha256)


@router.post("/withdrawal", status_code=204, responses=_GET)
async def withdraw(body: WithdrawIn, exchange: AnyExchange, services: AnyServices, client: Client) -> None:
    """The client leaves the exchange; with a complaint, the client at fault is excluded as well."""
    if body.reason is WithdrawalReason.NOT_ELIGIBLE:
        # Its next heartbeat says so too, but the next attempt may come before that.
        services.presence.note_eligible(client.client_id, False)
    elif body.reason is WithdrawalReason.STOPPED and not body.check:
        services.presence.stop(client.client_id)
    await exchange.withdraw(client.client_id, body, client.content_sha256)
