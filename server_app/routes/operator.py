"""For operators: submit runs, follow and cancel them, fetch the model, see who is connected."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Header, Path, Query, Request

from fedcore.federation.transcript import TranscriptOut
from fedcore.wire.base import SHA256_HEX
from fedcore.wire.events import RunOut
from fedcore.wire.operator import (
    MOST_LISTED,
    RosterIn,
    RosterOut,
    RunClientsOut,
    RunFilesOut,
    RunIn,
    RunsOut,
    RunStatus,
    ServerOut,
)
from fedcore.wire.presence import RostersOut
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import ModelRef
from fedcore.wire.watch import Role
from server_app.http.audience import ForOperators
from server_app.http.guard import MODEL_BYTES
from server_app.http.problems import problem_responses
from server_app.routes.access import (
    After,
    AnyQueue,
    AnyServices,
    RecordHash,
    RunId,
    Wait,
    guarded_request,
    records_after,
)
from server_app.routes.files import OCTETS, ModelResponse, body_chunks
from server_app.storage.blobs import Body
from server_app.views.members import members_out
from server_app.views.redaction import run_for_viewers, runs_for_viewers

router = APIRouter(
    prefix="/v1",
    route_class=ForOperators,
    tags=["operator"],
    responses=problem_responses(
        ProblemKind.UNAUTHORIZED, ProblemKind.MALFORMED, ProblemKind.NOT_ALLOWED, ProblemKind.CROSS_SITE
    ),
)
_MISSING = problem_responses(ProblemKind.NOT_FOUND)
EVENTS_OF_VIEWERS: Final = 200
"""In one answer: all events of a long run with many clients are seconds of work, which a link is not good for."""
FilePath = Annotated[str, Path(max_length=300)]


@router.post(
    "/runs",
    status_code=201,
    responses=problem_responses(
        ProblemKind.MALFORMED,
        ProblemKind.BAD_CONFIGURATION,
        ProblemKind.DIGEST_MISMATCH,
        ProblemKind.TOO_LARGE,
        ProblemKind.STORAGE_FULL,
        ProblemKind.BUSY,
    ),
)
async def submit(body: RunIn, queue: AnyQueue) -> RunOut:
    """Check a run and put it in the queue."""
    return await queue.submit(body)


@router.get("/runs", responses=_MISSING)
async def runs(
    queue: AnyQueue,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 50,
    before: Annotated[str, Query(max_length=64, description="only runs that were submitted before this one")] = "",
    status: RunStatus | None = None,
) -> RunsOut:
    """The runs, the newest first."""
    page = await queue.list_runs(limit, before, status)
    return runs_for_viewers(page) if guarded_request(request).role is Role.VIEWER else page


@router.get("/runs/{run}", responses=_MISSING)
async def follow(
    run: RunId,
    queue: AnyQueue,
    services: AnyServices,
    request: Request,
    after: After = 0,
    wait: Wait = 0,
) -> RunOut:
    """The state of a run; waits for an event after number `after`, or for the run's end.

    Viewers see nothing that the app put into words, and a number of events at a time.
    """
    deadline = services.clock() + wait
    role = guarded_request(request).role
    most = EVENTS_OF_VIEWERS if role is Role.VIEWER else None
    while True:
        state = await queue.describe(run, after, most)
        answer = run_for_viewers(state) if role is Role.VIEWER else state
        if state.events and not answer.events:  # all of them were hidden ones: go on after these
            after = state.events[-1].seq
            continue
        left = deadline - services.clock()
        if answer.events or answer.status.final or left <= 0 or services.run_bell.stopped:
            return answer
        # A ring between the reading and the wait would be missed; a second bounds the delay.
        await services.run_bell.wait(min(left, 1.0))


@router.get("/runs/{run}/clients", responses=_MISSING)
async def run_clients(run: RunId, queue: AnyQueue) -> RunClientsOut:
    """Where each client stands: away, waiting, training, uploading, done or dropped, and why. Empty after the end."""
    return await queue.clients(run)


@router.put(
    "/models/{sha256}",
    status_code=204,
    responses=problem_responses(ProblemKind.DIGEST_MISMATCH, ProblemKind.TOO_LARGE, ProblemKind.STORAGE_FULL),
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "a safetensors file",
            "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_model(
    request: Request,
    queue: AnyQueue,
    sha256: Annotated[str, Path(pattern=SHA256_HEX)],
    content_length: Annotated[int, Header(ge=1, le=MODEL_BYTES)],
) -> None:
    """A model that a run is to start from, streamed to the disk; the next run that names its SHA-256 takes it."""
    await queue.take_model(Body(chunks=body_chunks(request), size=content_length, sha256=bytes.fromhex(sha256)))


@router.post("/runs/{run}/cancel", responses=_MISSING)
async def cancel(run: RunId, queue: AnyQueue) -> RunOut:
    """End a run; one that has ended already stays as it is."""
    return await asyncio.shield(queue.cancel(run))


@router.post(
    "/runs/{run}/again",
    status_code=201,
    responses=problem_responses(
        ProblemKind.NOT_FOUND,
        ProblemKind.BAD_CONFIGURATION,
        ProblemKind.APP_NOT_APPROVED,
        ProblemKind.STORAGE_FULL,
        ProblemKind.BUSY,
    ),
)
async def again(run: RunId, queue: AnyQueue) -> RunOut:
    """Submit the same app again, with the run's config, settings and initial model."""
    return await queue.again(run)


@router.post(
    "/runs/{run}/resume",
    responses=problem_responses(ProblemKind.NOT_FOUND, ProblemKind.BAD_CONFIGURATION),
)
async def resume(run: RunId, queue: AnyQueue) -> RunOut:
    """Let a run go on that failed, was cancelled or interrupted, after the last exchange that it has had."""
    return await queue.resume(run)


@router.get(
    "/runs/{run}/model",
    status_code=200,
    response_class=ModelResponse,
    responses={**_MISSING, 200: {"content": {OCTETS: {}}, "description": "safetensors"}},
)
async def model(
    run: RunId, queue: AnyQueue, which: Annotated[Literal["last", "best"], Query()] = "last"
) -> ModelResponse:
    """The final model of a run, or its best one by its setting best-model."""
    path, reference, name = await (queue.best_model_file(run) if which == "best" else queue.model_file(run))
    return ModelResponse(path, reference, name)


@router.get("/runs/{run}/files", responses=_MISSING)
async def files(run: RunId, queue: AnyQueue) -> RunFilesOut:
    """What the ServerApp of a run left: its results and the files that it wrote; nothing before the run has ended."""
    return await queue.files(run)


@router.get(
    "/runs/{run}/files/{path:path}",
    status_code=200,
    response_class=ModelResponse,
    responses={**_MISSING, 200: {"content": {OCTETS: {}}, "description": "the file"}},
)
async def file(run: RunId, path: FilePath, queue: AnyQueue) -> ModelResponse:
    """One of these files, by the path that the list has."""
    content, listed = await queue.file(run, path)
    return ModelResponse(content, ModelRef(sha256=listed.sha256, size=listed.size), path.rpartition("/")[2])


@router.get("/operator/rosters")
async def rosters(services: AnyServices) -> RostersOut:
    """All rosters up to the one in use, under which the transcript's records are checked."""
    return RostersOut(rosters=[roster.to_json() for roster in services.roster.after(0)])


@router.get("/operator/transcript", responses=_MISSING)
async def transcript(services: AnyServices, after: RecordHash = "") -> TranscriptOut:
    """The federation's transcript, after the record with this hash."""
    return await records_after(services, after)


@router.get("/clients")
async def clients(services: AnyServices) -> ServerOut:
    """The roster, and who of it is connected."""
    return members_out(services)


@router.put(
    "/roster",
    responses=problem_responses(ProblemKind.PROTOCOL_VIOLATION, ProblemKind.TOO_LARGE, ProblemKind.STORAGE_FULL),
)
async def publish(body: RosterIn, services: AnyServices) -> RosterOut:
    """Hand in rosters that the authority signed; they come into use between two exchanges."""
    await services.roster.publish(body.rosters)
    return RosterOut(roster=services.roster.current.version, newest=services.roster.newest.version)
