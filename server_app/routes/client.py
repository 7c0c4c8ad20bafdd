"""For clients: join, take tasks, and do the steps of an exchange. Every request is signed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Path, Query, Request, Response

from fedcore.parts import PART_BYTES
from fedcore.system.version import fedcore_version
from fedcore.transcript import TranscriptOut
from fedcore.wire import (
    AdvertisementIn,
    ClientId,
    CohortOut,
    ConsistencyIn,
    DealingOut,
    DeliveryOut,
    HeartbeatIn,
    JoinIn,
    JoinOut,
    KeySharesIn,
    ManifestIn,
    PartsOut,
    ProblemKind,
    RostersOut,
    SignaturesOut,
    SurvivorsOut,
    Task,
    UnmaskIn,
    WithdrawalReason,
    WithdrawIn,
)
from server_app.http.audience import ForClients
from server_app.http.polling import poll
from server_app.http.problems import Rejection, problem_responses
from server_app.routes.access import (
    AnyExchange,
    AnyQueue,
    AnyServices,
    Client,
    ClientHead,
    RecordHash,
    Secure,
    UploadExchange,
    Wait,
    guarded_request,
    records_after,
)
from server_app.routes.files import OCTETS, ModelResponse
from server_app.services import Services
from server_app.storage.blobs import Body

T = TypeVar("T")
K = ProblemKind
router = APIRouter(
    prefix="/v1",
    route_class=ForClients,
    tags=["client"],
    responses=problem_responses(K.UNAUTHORIZED, K.REVOKED, K.MALFORMED, K.DIGEST_MISMATCH, K.TOO_LARGE),
)
EXCHANGE = "/runs/{run}/exchanges/{exchange}"
_ENDED = (K.NOT_FOUND, K.NOT_IN_COHORT, K.STALE_STEP, K.ROUND_FAILED)
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


@router.post("/join")
async def join(body: JoinIn, services: AnyServices, client: Client) -> JoinOut:
    """A client says that it is there and which app its owner installed."""
    await services.store.remember_client(client.client_id, body.app_sha256, body.version)
    services.presence.join(
        client.client_id, body.app_sha256, eligible=body.eligible, reports_failures=body.reports_failures
    )
    return JoinOut(
        federation=services.roster.federation,
        name=services.names[client.client_id],
        version=fedcore_version(),
        heartbeat_seconds=services.settings.heartbeat_seconds,
        roster=services.roster.current.version,
        roster_sha256=services.roster.current.hash().hex(),
    )


@router.get("/rosters")
async def rosters(
    services: AnyServices,
    client: Client,
    after: Annotated[int, Query(ge=1, le=2**31 - 1, description="version that the client knows")],
) -> RostersOut:
    """The rosters that the client has missed, up to the one in use."""
    return RostersOut(rosters=[roster.to_json() for roster in services.roster.after(after)])


@router.post("/heartbeat", status_code=204)
async def heartbeat(
    request: Request, body: HeartbeatIn, services: AnyServices, queue: AnyQueue, client: Client
) -> None:
    """A sign of life; the signature itself is what counts."""
    services.presence.note_eligible(client.client_id, body.eligible)
    if body.stopping:
        services.presence.stop(client.client_id)
    shown = queue.exchange
    if shown is not None and (shown.task.run, shown.task.exchange) == (body.run, body.exchange):
        guarded_request(request).count_bytes = shown.usage.byte_counter(client.client_id)


@router.get("/task", response_model=Task, responses=_NOT_YET)
async def task(
    request: Request,
    services: AnyServices,
    queue: AnyQueue,
    client: Client,
    wait: Wait = 0,
    run: Annotated[str, Query(max_length=64, description="run of the last task taken")] = "",
    after: Annotated[int, Query(ge=0, description="exchange of the last task taken")] = 0,
) -> Response:
    """The exchange that the client is asked to take part in, if there is one."""

    def probe() -> Task | None:
        shown = queue.exchange
        if shown is None or (shown.task.run == run and shown.task.exchange <= after):
            return None
        return shown.task_for(client.client_id)

    found = await poll(services.client_bell, probe, wait)
    if found is not None and queue.exchange is not None:
        guarded_request(request).count_bytes = queue.exchange.usage.byte_counter(client.client_id)
    return _answer(found)


@router.get("/transcript", responses=problem_responses(K.NOT_FOUND))
async def transcript(services: AnyServices, client: Client, after: RecordHash = "") -> TranscriptOut:
    """The federation's transcript, after the record with this hash; every member may see all of it."""
    return await records_after(services, after)


@router.get(
    f"{EXCHANGE}/model",
    status_code=200,
    response_class=ModelResponse,
    responses={**_GET, 200: {"content": {OCTETS: {}}, "description": "safetensors"}},
)
async def model(exchange: AnyExchange, client: Client) -> ModelResponse:
    """The global model that the exchange starts from; plain: all that this client is sent, as a record file."""
    exchange.require(client.client_id)
    found = exchange.model_for(client.client_id)
    if found is None:
        raise Rejection(ProblemKind.NOT_FOUND, "this exchange has no model")
    return ModelResponse(*found)


@router.put(f"{EXCHANGE}/advertisement", response_model=CohortOut, responses={**_PUT, **_NOT_YET})
async def put_advertisement(
    body: AdvertisementIn, exchange: Secure, services: AnyServices, client: Client, wait: Wait = 0
) -> Response:
    """R0: the client's keys. Answers with U1 if it is known within `wait` seconds, which saves a request."""
    await exchange.take_advertisement(client.client_id, body, client.content_sha256)
    return await _poll(services, lambda: exchange.cohort_for(client.client_id), wait)


@router.get(f"{EXCHANGE}/cohort", response_model=CohortOut, responses={**_GET, **_NOT_YET})
async def cohort(exchange: Secure, services: AnyServices, client: Client, wait: Wait = 0) -> Response:
    """U1: everybody's keys."""
    return await _poll(services, lambda: exchange.cohort_for(client.client_id), wait)


@router.put(f"{EXCHANGE}/key-shares", response_model=DeliveryOut, responses={**_PUT, **_NOT_YET})
async def put_key_shares(
    body: KeySharesIn, exchange: Secure, services: AnyServices, client: Client, wait: Wait = 0
) -> Response:
    """R1: sealed shares for the others. Answers with U2 and this client's shares if they come within `wait` seconds."""
    await exchange.take_key_shares(client.client_id, body, client.content_sha256)
    return await _poll(services, lambda: exchange.delivery_for(client.client_id), wait)


@router.get(f"{EXCHANGE}/key-shares", response_model=DeliveryOut, responses={**_GET, **_NOT_YET})
async def key_shares(exchange: Secure, services: AnyServices, client: Client, wait: Wait = 0) -> Response:
    """U2, and the shares sealed for this client."""
    return await _poll(services, lambda: exchange.delivery_for(client.client_id), wait)


@router.get(f"{EXCHANGE}/key-shares/{{dealer}}", responses=_GET)
async def dealing(exchange: Secure, client: Client, dealer: ClientId) -> DealingOut:
    """What another client signed about the shares that it dealt: the evidence for a complaint about them."""
    return exchange.dealing_for(client.client_id, dealer)


@router.put(
    f"{EXCHANGE}/update/parts/{{index}}",
    status_code=204,
    responses=_PUT,
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "8 MiB, the last part what is left; secure: of the masked vector, little-endian 64-bit "
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
    body = Body(chunks=_chunks(request), size=content_length, sha256=client.content_sha256)
    await exchange.take_part(client.client_id, index, body)


@router.get(f"{EXCHANGE}/update/parts", responses=_PUT)
async def parts(
    exchange: AnyExchange,
    client: Client,
    size: Annotated[int, Query(ge=0, le=2**63 - 1, description="bytes of the update that the client sends")],
) -> PartsOut:
    """The parts that the server holds, for a client that goes on after a broken connection."""
    held = exchange.parts_of(client.client_id, size)
    return PartsOut(parts={index: sha256.hex() for index, sha256 in held.items()})


@router.put(f"{EXCHANGE}/manifest", status_code=204, responses=_PUT)
async def put_manifest(body: ManifestIn, exchange: AnyExchange, client: Client) -> None:
    """Ends the upload; in plain mode an error in the place of a file is the whole reply."""
    await exchange.take_manifest(client.client_id, body, client.content_sha256)


@router.get(f"{EXCHANGE}/survivors", response_model=SurvivorsOut, responses={**_GET, **_NOT_YET})
async def survivors(exchange: Secure, services: AnyServices, client: Client, wait: Wait = 0) -> Response:
    """U3: whose vectors are in the sum."""
    return await _poll(services, lambda: exchange.survivors_for(client.client_id), wait)


@router.put(f"{EXCHANGE}/consistency", response_model=SignaturesOut, responses={**_PUT, **_NOT_YET})
async def put_consistency(
    body: ConsistencyIn, exchange: Secure, services: AnyServices, client: Client, wait: Wait = 0
) -> Response:
    """R3: the signature over the survivors. Answers with everybody's if they come within `wait` seconds."""
    await exchange.take_consistency(client.client_id, body, client.content_sha256)
    return await _poll(services, lambda: exchange.signatures_for(client.client_id), wait)


@router.get(f"{EXCHANGE}/consistency", response_model=SignaturesOut, responses={**_GET, **_NOT_YET})
async def consistency(exchange: Secure, services: AnyServices, client: Client, wait: Wait = 0) -> Response:
    """Everybody's signatures over the survivors."""
    return await _poll(services, lambda: exchange.signatures_for(client.client_id), wait)


@router.put(f"{EXCHANGE}/unmask", status_code=204, responses=_PUT)
async def put_unmask(body: UnmaskIn, exchange: Secure, client: Client) -> None:
    """R4: the shares that remove the masks from the sum."""
    await exchange.take_unmask(client.client_id, body, client.content_sha256)


@router.post(f"{EXCHANGE}/withdrawal", status_code=204, responses=_GET)
async def withdraw(body: WithdrawIn, exchange: AnyExchange, services: AnyServices, client: Client) -> None:
    """The client leaves the exchange; with a complaint, whoever it shows to have cheated leaves as well."""
    if body.reason is WithdrawalReason.NOT_ELIGIBLE:
        # Its next heartbeat says so too, but the next attempt may come before that.
        services.presence.note_eligible(client.client_id, False)
    elif body.reason is WithdrawalReason.STOPPED and not body.check:
        services.presence.stop(client.client_id)
    await exchange.withdraw(client.client_id, body)


async def _poll(services: Services, probe: Callable[[], T | None], wait: float) -> Response:
    return _answer(await poll(services.client_bell, probe, wait))


def _answer(message: object | None) -> Response:
    """A message as JSON, made once; 204 where there is none yet."""
    if message is None:
        return Response(status_code=204)
    text = message.model_dump_json()  # type: ignore[attr-defined]
    return Response(text, media_type="application/json")


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk
