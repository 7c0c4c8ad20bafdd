"""Routes for operators and viewers: rounds, participation marks, and what the server can see."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from fedcore.wire.problems import ProblemKind
from fedcore.wire.watch import MOST_MARKS, MarksOut, RoundsOut, ServerViewOut
from server_app.http.audience import ForOperators
from server_app.http.problems import problem_responses
from server_app.routes.access import AnyQueue, RunId

router = APIRouter(
    prefix="/v1/runs/{run}",
    route_class=ForOperators,
    tags=["operator"],
    responses=problem_responses(ProblemKind.UNAUTHORIZED, ProblemKind.MALFORMED, ProblemKind.NOT_FOUND),
)


@router.get("/rounds")
async def rounds(run: RunId, queue: AnyQueue) -> RoundsOut:
    """The rounds of a run so far: metrics, seconds, bytes, epsilon, and how many took part."""
    view = await queue.view(run)
    return view.rounds.describe(view.seq)


@router.get("/marks")
async def marks(run: RunId, queue: AnyQueue, last: Annotated[int, Query(ge=1, le=MOST_MARKS)] = 60) -> MarksOut:
    """Where each client stood in the last exchanges of a run, one character for each."""
    return await queue.marks(run, last)


@router.get("/saw")
async def server_view(run: RunId, queue: AnyQueue) -> ServerViewOut:
    """The beginnings of a masked update, of the masked sum, and of the mean, of the newest exchange."""
    return await queue.server_view(run)
