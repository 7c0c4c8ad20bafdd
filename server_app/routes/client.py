"""Routes for clients: join, take tasks, and do the steps of an exchange. Every request is signed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from fedcore.federation.transcript import TranscriptOut
from fedcore.wire.base import SHA256_HEX, ClientId
from fedcore.wire.chunks import PART_BYTES
from fedcore.wire.forms import our_version, refusal, understands
from fedcore.wire.presence import (
    OFFERS_HEADER,
    WORK_HEADER,
    WORK_OVER,
    AppOut,
    HeartbeatIn,
    JoinIn,
    JoinOut,
    RostersOut,
    WorkIn,
)
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
from fedcore.wire.tasks import DrawTicketIn, Task
from fedcore.wire.uploads import ManifestIn, PartsOut, WithdrawalReason, WithdrawIn
from server_app.exchanges.exchange import Exchange
from server_app.http.audience import ForClients
from server_app.http.problems import problem_responses
from server_app.polling import HungUp
from server_app.rejection import Rejection
from server_app.routes.access import (
    AnyExchange,
    AnyOffers,
    AnyPoll,
    AnyQueue,
    AnyServices,
    Client,
    ClientHead,
    Draw,
    LongPoll,
    RecordHash,
    RunId,
    Secure,
    UploadExchange,
    guarded_request,
    records_after,
)
from server_app.routes.files import OCTETS, DifferenceResponse, ModelResponse, OctetsResponse, body_chunks
from server_app.storage.blobs import Body

K = ProblemKind
PIECE_BYTES: Final = 1 << 20
SHA256_OR_NONE: Final = r"^([0-9a-f]{64})?$"
log = logging.getLogger("fedcore.server")

router = APIRouter(
    prefix="/v1",
    route_class=ForClients,
    tags=["client"],
    responses=problem_responses(K.UNAUTHORIZED, K.WRONG_CLOCK, K.REVOKED, K.MALFORMED, K.DIGEST_MISMATCH, K.TOO_LARGE),
)
EXCHANGE = "/runs/{run}/exchanges/{exchange}"
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

_NO_TASK: dict[int | str, dict[str, Any]] = {
    204: {
        "description": "Nothing yet; ask again",
        "headers": {
            OFFERS_HEADER: {
                "schema": {"type": "string"},
                "description": "SHA-256 of apps that open runs want, where the client has none of them installed",
            },
            WORK_HEADER: {
                "schema": {"type": "string"},
                "description": f"{WORK_OVER!r} where the run `work` has ended: nobody waits for what was given for it",
            },
        },
    }
}


@router.post("/join", responses=problem_responses(K.OTHER_VERSION))
async def join(body: JoinIn, services: AnyServices, client: Client) -> JoinOut:
    """A client says that it is there and which app its owner installed.

    A client of an incompatible version is refused with the reason, and does not count as online.
    """
    await services.store.remember_client(client.client_id, body.app_sha256, body.version)
    if not understands(body.version):
        detail = refusal(server=our_version(), client=body.version)
        if services.presence.refuse(client.client_id):
            log.warning("%s cannot take part: %s", services.names[client.client_id], detail)
        raise Rejection(ProblemKind.OTHER_VERSION, detail)
    services.presence.join(
        client.client_id, body.app_sha256, eligible=body.eligible, reports_failures=body.reports_failures
    )
    services.work.joined(client.client_id, body.work)
    if body.work is not None:
        services.client_bell.ring()
    return JoinOut(
        federation=services.roster.federation,
        name=services.names[client.client_id],
        version=our_version(),
        heartbeat_seconds=services.settings.heartbeat_seconds,
        roster=services.roster.current.version,
        roster_sha256=services.roster.sha256.hex(),
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
    shown = queue.shown.find(body.run, body.exchange)
    if shown is not None:
        guarded_request(request).count_bytes = shown.usage.byte_counter(client.client_id)
        shown.transfers.note_progress(client.client_id, body.received)


@router.get("/task", response_model=Task, responses=_NO_TASK)
async def task(
    request: Request,
    services: AnyServices,
    queue: AnyQueue,
    client: Client,
    offers: AnyOffers,
    waiting: AnyPoll,
    run: Annotated[str, Query(max_length=64, description="run of the last task taken")] = "",
    after: Annotated[int, Query(ge=0, description="exchange of the last task taken")] = 0,
    work: Annotated[str, Query(max_length=64, description="run of the last work taken")] = "",
    version: Annotated[int, Query(ge=0, description="version of the last work taken")] = 0,
) -> Response:
    """The exchange that the client is asked to take part in, or work for a later one, if there is any.

    An idle client sends nothing else: while it waits here it is there, and when its connection ends it is not.
    """

    def probe() -> tuple[Exchange | None, Task] | None:
        if (found := queue.shown.next_for(client.client_id, run, after)) is not None:
            return found
        task = services.work.given_to(client.client_id, work, version)
        return None if task is None else (None, task)

    presence, found = services.presence, None
    presence.note_request(client.client_id, (run, after))
    try:
        found = await waiting.answer(probe)
    except HungUp:
        presence.note_hangup(client.client_id)
    if found is None:
        apps = await offers.to(client.client_id)
        headers = {OFFERS_HEADER: ", ".join(apps)} if apps else {}
        headers |= {WORK_HEADER: WORK_OVER} if services.work.is_over(work) else {}
        return Response(status_code=204, headers=headers)
    exchange, task = found
    if exchange is None:
        guarded_request(request).count_bytes = services.work.counter(client.client_id)
        return _answer(task)
    presence.note_delivery(client.client_id, (task.run, task.exchange))
    guarded_request(request).count_bytes = exchange.usage.byte_counter(client.client_id)
    return _answer(task)


@router.put("/work", status_code=204)
async def work(body: WorkIn, services: AnyServices, client: Client) -> None:
    """What a client has in hand of a buffered run: an update that is ready, or work that came to nothing."""
    services.work.heard(client.client_id, body)
    services.client_bell.ring()


@router.get(
    "/runs/{run}/versions/{number}/model",
    status_code=200,
    response_class=ModelResponse,
    responses={**problem_responses(K.NOT_FOUND), 200: {"content": {OCTETS: {}}, "description": "safetensors"}},
)
async def version_model(
    request: Request, run: RunId, number: Annotated[int, Path(ge=0)], services: AnyServices, client: Client
) -> ModelResponse:
    """The model of a version, for a client that was given it to train from."""
    found = services.work.model_for(client.client_id, run, number)
    if found is None:
        raise Rejection(ProblemKind.NOT_FOUND, "this client is not asked to train from that version any more")
    guarded_request(request).count_bytes = services.work.counter(client.client_id)
    return ModelResponse(*found)


@router.get("/apps/{sha256}", response_model=AppOut, responses=problem_responses(K.NOT_FOUND))
async def offered_app(
    offers: AnyOffers, client: Client, sha256: Annotated[str, Path(pattern=SHA256_HEX)]
) -> StreamingResponse:
    """The files of an app that an open run wants, for the owner of a client that has another one."""
    content = memoryview(await offers.content(sha256))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), PIECE_BYTES):
            yield bytes(content[start : start + PIECE_BYTES])

    headers = {"content-length": str(len(content))}
    return StreamingResponse(pieces(), media_type="application/json", headers=headers)


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
async def model(
    exchange: AnyExchange,
    client: Client,
    base: Annotated[
        str, Query(pattern=SHA256_OR_NONE, description="SHA-256 of a model of the run that the client has")
    ] = "",
) -> OctetsResponse:
    """The global model that the exchange starts from; plain: all that this client is sent, as a record file.

    Where the server has it as a difference to `base`, that comes in its place, and the header `Delta-Base` says so.
    """
    exchange.require(client.client_id)
    exchange.transfers.start_download(client.client_id)
    if base and (difference := exchange.difference_to(base)) is not None:
        return DifferenceResponse(difference, base)
    found = exchange.model_for(client.client_id)
    if found is None:
        raise Rejection(ProblemKind.NOT_FOUND, "this exchange has no model")
    return ModelResponse(*found)


@router.put(f"{EXCHANGE}/place", status_code=204, responses=_PUT)
async def put_place(body: DrawTicketIn, exchange: Draw, client: Client) -> None:
    """The answer to a draw: the client's place among all, signed (`fedcore.run.groups`)."""
    await exchange.take_ticket(client.client_id, body, client.content_sha256)


@router.put(f"{EXCHANGE}/advertisement", response_model=CohortOut, responses={**_PUT, **_NOT_YET})
async def put_advertisement(body: AdvertisementIn, exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """R0: the client's keys. Answers with U1 if it is known within `wait` seconds, which saves a request."""
    await exchange.take_step(client.client_id, "advertisement", body, client.content_sha256)
    return await _poll(waiting, lambda: exchange.cohort_for(client.client_id))


@router.get(f"{EXCHANGE}/cohort", response_model=CohortOut, responses={**_GET, **_NOT_YET})
async def cohort(exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """U1: everybody's keys."""
    return await _poll(waiting, lambda: exchange.cohort_for(client.client_id))


@router.put(f"{EXCHANGE}/key-shares", response_model=DeliveryOut, responses={**_PUT, **_NOT_YET})
async def put_key_shares(body: KeySharesIn, exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """R1: sealed shares for the others. Answers with U2 and this client's shares if they come within `wait` seconds."""
    await exchange.take_step(client.client_id, "key-shares", body, client.content_sha256)
    return await _poll(waiting, lambda: exchange.delivery_for(client.client_id))


@router.get(f"{EXCHANGE}/key-shares", response_model=DeliveryOut, responses={**_GET, **_NOT_YET})
async def key_shares(exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """U2, and the shares sealed for this client."""
    return await _poll(waiting, lambda: exchange.delivery_for(client.client_id))


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
    body = Body(chunks=body_chunks(request), size=content_length, sha256=client.content_sha256)
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
    """Ends the upload; in plain mode an error instead of a file is the whole reply."""
    await exchange.take_manifest(client.client_id, body, client.content_sha256)


@router.get(f"{EXCHANGE}/survivors", response_model=SurvivorsOut, responses={**_GET, **_NOT_YET})
async def survivors(exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """U3: whose vectors are in the sum."""
    return await _poll(waiting, lambda: exchange.survivors_for(client.client_id))


@router.put(f"{EXCHANGE}/consistency", response_model=SignaturesOut, responses={**_PUT, **_NOT_YET})
async def put_consistency(body: ConsistencyIn, exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """R3: the signature over the survivors. Answers with everybody's if they come within `wait` seconds."""
    await exchange.take_step(client.client_id, "consistency", body, client.content_sha256)
    return await _poll(waiting, lambda: exchange.signatures_for(client.client_id))


@router.get(f"{EXCHANGE}/consistency", response_model=SignaturesOut, responses={**_GET, **_NOT_YET})
async def consistency(exchange: Secure, client: Client, waiting: AnyPoll) -> Response:
    """Everybody's signatures over the survivors."""
    return await _poll(waiting, lambda: exchange.signatures_for(client.client_id))


@router.put(f"{EXCHANGE}/unmask", status_code=204, responses=_PUT)
async def put_unmask(body: UnmaskIn, exchange: Secure, client: Client) -> None:
    """R4: the shares that remove the masks from the sum."""
    await exchange.take_step(client.client_id, "unmask", body, client.content_sha256)


@router.post(f"{EXCHANGE}/withdrawal", status_code=204, responses=_GET)
async def withdraw(body: WithdrawIn, exchange: AnyExchange, services: AnyServices, client: Client) -> None:
    """The client leaves the exchange; with a complaint, the client at fault is excluded as well."""
    if body.reason is WithdrawalReason.NOT_ELIGIBLE:
        # Its next heartbeat says so too, but the next attempt may come before that.
        services.presence.note_eligible(client.client_id, False)
    elif body.reason is WithdrawalReason.STOPPED and not body.check:
        services.presence.stop(client.client_id)
    await exchange.withdraw(client.client_id, body, client.content_sha256)


async def _poll(waiting: LongPoll, probe: Callable[[], object | None]) -> Response:
    try:
        return _answer(await waiting.answer(probe))
    except HungUp:
        return _answer(None)


def _answer(message: object | None) -> Response:
    """A message as JSON, made once; 204 if there is none yet."""
    if message is None:
        return Response(status_code=204)
    text = message.model_dump_json()  # type: ignore[attr-defined]
    return Response(text, media_type="application/json")
