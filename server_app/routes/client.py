"""Routes for clients: join, send heartbeats, and take tasks and work. Every request is signed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from fedcore.federation.transcript import TranscriptOut
from fedcore.monitoring.line_speed import LineSpeed
from fedcore.wire.base import SHA256_HEX
from fedcore.wire.forms import our_version, refusal, understands
from fedcore.wire.presence import (
    LEADER_PATH,
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
from fedcore.wire.tasks import Task
from server_app.exchanges.exchange import Exchange
from server_app.http.audience import ForClients
from server_app.http.authentication import ClientCaller
from server_app.http.problems import problem_responses
from server_app.polling import HungUp
from server_app.rejection import Rejection
from server_app.routes.access import (
    OF_CLIENTS,
    AnyOffers,
    AnyPoll,
    AnyQueue,
    AnyServices,
    Client,
    RecordHash,
    RunId,
    guarded_request,
    json_response,
    records_after,
)
from server_app.routes.files import OCTETS, ModelResponse
from server_app.services import Services

K = ProblemKind
PIECE_BYTES: Final = 1 << 20
log = logging.getLogger("fedcore.server")

router = APIRouter(
    prefix="/v1",
    route_class=ForClients,
    tags=["client"],
    responses=OF_CLIENTS,
)

LOST_RECORDS: Final = (
    "this server does not have the last record of the transcript that the client knows, or signed: an older state of "
    "its database was put back, or another one. Put the newest backup back (docs/howto/operating.md)"
)
"""Why a client is refused whose transcript is not the beginning of this server's."""

_NO_TASK: dict[int | str, dict[str, Any]] = {
    204: {
        "description": "Nothing yet; ask again",
        "headers": {
            OFFERS_HEADER: {
                "schema": {"type": "string"},
                "description": "SHA-256 of apps that open runs want, if the client has none of them installed",
            },
            WORK_HEADER: {
                "schema": {"type": "string"},
                "description": f"{WORK_OVER!r} if the run `work` has ended: nobody waits for its work",
            },
        },
    }
}


def _refused(services: Services, client: ClientCaller, kind: ProblemKind, why: str) -> Rejection:
    """The answer to a client that cannot take part as it is; the log has each reason once."""
    if services.presence.refuse(client.client_id, why):
        log.warning("%s cannot take part: %s", services.names[client.client_id], why)
    return Rejection(kind, why)


@router.get(LEADER_PATH.removeprefix("/v1"), status_code=204)
async def leader(_: Client) -> None:
    """This server leads; one that stands by refuses as it does everything."""


@router.post("/join", responses=problem_responses(K.OTHER_VERSION, K.OTHER_TRANSCRIPT))
async def join(body: JoinIn, services: AnyServices, client: Client) -> JoinOut:
    """A client says that it is there and which app its owner installed.

    A client of an incompatible version is refused with the reason, and does not count as online. So is one that knows
    of sums of which this server knows nothing, since an older state of it was put back.
    """
    await services.store.remember_client(client.client_id, body.app_sha256, body.version)
    if not understands(body.version):
        raise _refused(services, client, ProblemKind.OTHER_VERSION, refusal(server=our_version(), client=body.version))
    store = services.store
    if (body.head and not await store.has_head(body.head)) or (body.signed and not await store.has_signed(body.signed)):
        raise _refused(services, client, ProblemKind.OTHER_TRANSCRIPT, LOST_RECORDS)
    services.presence.join(
        client.client_id, body.app_sha256, eligible=body.eligible, reports_failures=body.reports_failures
    )
    services.work.join(client.client_id, body.work)
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
    exchange = queue.active_exchanges.find(body.run, body.exchange)
    if exchange is not None:
        guarded_request(request).count_bytes = exchange.usage.byte_counter(client.client_id)
        exchange.transfers.note_progress(client.client_id, body.received)


@router.get("/task", response_model=Task, responses={**problem_responses(K.OTHER_VERSION), **_NO_TASK})
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
    line: Annotated[
        str, Query(max_length=100, description="its line: bytes a second down and up, seconds of a round trip")
    ] = "",
) -> Response:
    """The exchange that includes the client, or work for a later one, if there is any.

    An idle client sends nothing else: while it waits here it is there, and when its connection ends it is not.
    """

    def probe() -> tuple[Exchange | None, Task] | None:
        if (due := queue.active_exchanges.next_for(client.client_id, run, after)) is not None:
            return due
        task = services.work.task_of(client.client_id, work, version)
        return None if task is None else (None, task)

    presence, due = services.presence, None
    if (before := presence.outdated.get(client.client_id)) is not None:
        raise _refused(services, client, K.OTHER_VERSION, refusal(server=our_version(), client=before))
    presence.note_request(client.client_id, (run, after))
    if (begun := queue.active_exchanges.begun_by(client.client_id)) is not None:
        presence.note_forgotten(client.client_id, (begun.task.run, begun.task.exchange))
    if line:
        services.lines.note_report(client.client_id, LineSpeed.from_query(line))
    with contextlib.suppress(HungUp):
        due = await waiting.answer(probe)
    if due is None:
        return _no_task(await offers.for_client(client.client_id), work_over=services.work.is_over(work))
    exchange, task = due
    if exchange is None:
        guarded_request(request).count_bytes = services.work.counter(client.client_id)
        return json_response(task)
    presence.note_delivery(client.client_id, (task.run, task.exchange))
    guarded_request(request).count_bytes = exchange.usage.byte_counter(client.client_id)
    return json_response(task)


def _no_task(apps: Sequence[str], *, work_over: bool) -> Response:
    headers = {OFFERS_HEADER: ", ".join(apps)} if apps else {}
    headers |= {WORK_HEADER: WORK_OVER} if work_over else {}
    return Response(status_code=204, headers=headers)


@router.put("/work", status_code=204)
async def work(body: WorkIn, services: AnyServices, client: Client) -> None:
    """What a client has in hand of a buffered run: an update that is ready, or work that came to nothing."""
    services.work.report(client.client_id, body)
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
    version = services.work.model_for(client.client_id, run, number)
    if version is None:
        raise Rejection(ProblemKind.NOT_FOUND, "this client is not asked to train from that version any more")
    guarded_request(request).count_bytes = services.work.counter(client.client_id)
    return ModelResponse(*version)


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
