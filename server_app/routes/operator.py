"""For operators: submit runs, follow and cancel them, fetch the model, see who is connected."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated

from fastapi import APIRouter, Path, Query

from fedcore.events import RunOut
from fedcore.system.version import fedcore_version
from fedcore.transcript import TranscriptOut
from fedcore.wire import (
    ClientOut,
    ModelRef,
    ProblemKind,
    RosterIn,
    RosterOut,
    RostersOut,
    RunFilesOut,
    RunIn,
    ServerOut,
)
from server_app.http.audience import ForOperators
from server_app.http.problems import problem_responses
from server_app.routes.access import AnyQueue, AnyServices, RecordHash, RunId, Wait, records_after
from server_app.routes.files import OCTETS, ModelResponse

router = APIRouter(
    prefix="/v1",
    route_class=ForOperators,
    tags=["operator"],
    responses=problem_responses(ProblemKind.UNAUTHORIZED, ProblemKind.MALFORMED),
)
_MISSING = problem_responses(ProblemKind.NOT_FOUND)
After = Annotated[int, Query(ge=0, description="number of the last event that is known")]
FilePath = Annotated[str, Path(max_length=300)]
ONLINE_SECONDS = 15.0


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


@router.get("/runs/{run}", responses=_MISSING)
async def follow(
    run: RunId,
    queue: AnyQueue,
    services: AnyServices,
    after: After = 0,
    wait: Wait = 0,
) -> RunOut:
    """The state of a run; waits for an event after number `after`, or for the run's end."""
    deadline = services.clock() + wait
    while True:
        answer = await queue.describe(run, after)
        left = deadline - services.clock()
        if answer.events or answer.status.final or left <= 0 or services.run_bell.stopped:
            return answer
        # A ring between the reading and the wait would be missed; a second bounds the delay.
        await services.run_bell.wait(min(left, 1.0))


@router.post("/runs/{run}/cancel", responses=_MISSING)
async def cancel(run: RunId, queue: AnyQueue) -> RunOut:
    """End a run; one that has ended already stays as it is."""
    return await asyncio.shield(queue.cancel(run))


@router.get(
    "/runs/{run}/model",
    status_code=200,
    response_class=ModelResponse,
    responses={**_MISSING, 200: {"content": {OCTETS: {}}, "description": "safetensors"}},
)
async def model(run: RunId, queue: AnyQueue) -> ModelResponse:
    """The final model of a run."""
    return ModelResponse(*await queue.model_file(run))


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
    found, listed = await queue.file(run, path)
    return ModelResponse(found, ModelRef(sha256=listed.sha256, size=listed.size))


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
    presence = services.presence
    listed = []
    for member in services.roster.members:
        silent = presence.silent_for(member.id)
        listed.append(
            ClientOut(
                id=member.id,
                name=member.name,
                online=silent <= ONLINE_SECONDS,
                eligible=not presence.waits(member.id),
                reports_failures=member.id in presence.reporting,
                app_sha256=presence.installed.get(member.id, ""),
                last_seen_seconds=None if math.isinf(silent) else round(silent, 3),
            )
        )
    return ServerOut(
        federation=services.roster.federation,
        version=fedcore_version(),
        roster=services.roster.newest.version,
        clients=listed,
    )


@router.put(
    "/roster",
    responses=problem_responses(ProblemKind.PROTOCOL_VIOLATION, ProblemKind.TOO_LARGE, ProblemKind.STORAGE_FULL),
)
async def publish(body: RosterIn, services: AnyServices) -> RosterOut:
    """Hand in rosters that the authority signed; they come into use between two exchanges."""
    await services.roster.publish(body.rosters)
    return RosterOut(roster=services.roster.current.version, newest=services.roster.newest.version)
