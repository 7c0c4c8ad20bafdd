"""Open routes for health: is the process alive, and can it work?"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from fedcore.wire.problems import ProblemKind
from server_app.http.audience import ForEverybody
from server_app.http.problems import problem_responses
from server_app.rejection import Rejection
from server_app.routes.access import AnyLeadership, AnyQueue, AnyServices

_UNAVAILABLE: Final = 503
"""For those that ask whether to send anything here; `busy` itself has another status."""
_NOT_READY: Final[dict[int | str, dict[str, Any]]] = dict.fromkeys(
    [_UNAVAILABLE], *problem_responses(ProblemKind.BUSY).values()
)

router = APIRouter(route_class=ForEverybody, tags=["health"])


class Health(BaseModel):
    """The process answers."""

    status: str


class Readiness(Health):
    """The process can work.

    warnings
        What the server's owner should see to anyway.
    """

    warnings: list[str] = Field(default_factory=list)


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers requests."""
    return Health(status="ok")


@router.get("/readyz", responses=_NOT_READY)
async def readyz(services: AnyServices, queue: AnyQueue, leadership: AnyLeadership, response: Response) -> Readiness:
    """Database, disk and object store can be written and read, and runs are being led.

    Answered from what the background checks found last, so that nothing that is stuck delays it.
    """
    response.headers["Cache-Control"] = "no-store"
    if not queue.alive or services.client_bell.stopped:
        raise Rejection(ProblemKind.BUSY, "the server is starting or stopping", status=_UNAVAILABLE)
    if troubles := [one for one in (queue.trouble, leadership.trouble, services.health.trouble) if one]:
        raise Rejection(ProblemKind.BUSY, "; ".join(troubles), status=_UNAVAILABLE)
    certificate = services.certificate.warning if services.certificate is not None else ""
    return Readiness(status="ready", warnings=[text for text in (certificate, services.clocks.warning) if text])
