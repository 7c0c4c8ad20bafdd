"""Open to everybody: is the process alive, and can it work?"""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel

from fedcore.wire import ProblemKind
from server_app.http.audience import ForEverybody
from server_app.http.problems import Rejection, problem_responses
from server_app.routes.access import AnyQueue, AnyServices

router = APIRouter(route_class=ForEverybody, tags=["health"])


class Health(BaseModel):
    """The answer of both addresses."""

    status: str


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers requests."""
    return Health(status="ok")


@router.get("/readyz", responses=problem_responses(ProblemKind.BUSY))
async def readyz(services: AnyServices, queue: AnyQueue, response: Response) -> Health:
    """The database answers, and runs are being led."""
    response.headers["Cache-Control"] = "no-store"
    await services.store.ping()
    if not queue.alive or services.client_bell.stopped:
        raise Rejection(ProblemKind.BUSY, "the server is starting or stopping")
    return Health(status="ready")
