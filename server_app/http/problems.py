"""The one place where errors become problem documents (RFC 9457).

Nothing here repeats what a peer sent: a validation error is reduced to the declared field and the
kind of the mistake, an unexpected exception to the word "internal".
"""

from __future__ import annotations

import logging
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fedcore.errors import (
    ConfigurationError,
    ConflictingMessage,
    FedcoreError,
    IllegalTransition,
    LeaseLost,
    ProtocolViolation,
    RoundFailed,
    StorageDamaged,
    StorageFull,
    StorageUnavailable,
    Unauthorized,
    WrongClock,
)
from fedcore.wire.problems import ProblemDocument, ProblemKind
from server_app.operation.metrics import Metrics
from server_app.rejection import STATUS, Rejection
from server_app.storage.trouble import disk_trouble

log = logging.getLogger("fedcore.server")

MEDIA_TYPE: Final = "application/problem+json"


def rejection_for(error: BaseException) -> Rejection:
    """The rejection that tells the sender of a request about `error`."""
    if isinstance(error, Rejection):
        return error
    if isinstance(error, RequestValidationError):
        return Rejection(ProblemKind.MALFORMED, _describe(error))
    if isinstance(error, HTTPException):
        return _rejection_for_http(error)
    if isinstance(error, ProtocolViolation):
        return Rejection(ProblemKind.PROTOCOL_VIOLATION, str(error), check=error.check)
    kinds: tuple[tuple[type[FedcoreError], ProblemKind], ...] = (
        (WrongClock, ProblemKind.WRONG_CLOCK),
        (Unauthorized, ProblemKind.UNAUTHORIZED),
        (ConflictingMessage, ProblemKind.CONFLICT),
        (IllegalTransition, ProblemKind.STALE_STEP),
        (StorageFull, ProblemKind.STORAGE_FULL),
        (StorageUnavailable, ProblemKind.STORAGE_UNAVAILABLE),
        (StorageDamaged, ProblemKind.STORAGE_UNAVAILABLE),  # before its base: it is not the asker's configuration
        (LeaseLost, ProblemKind.NOT_LEADING),
        (ConfigurationError, ProblemKind.BAD_CONFIGURATION),
        (RoundFailed, ProblemKind.ROUND_FAILED),
    )
    for kind_of_error, kind in kinds:
        if isinstance(error, kind_of_error):
            return Rejection(kind, str(error))
    return Rejection(ProblemKind.INTERNAL, "the server failed; its log says more")


GUARDED: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Headers of every answer that has no other ones: it is for one reader, and is what its type says."""


def problem_response(error: BaseException) -> JSONResponse:
    """The problem document of `error` as a response."""
    rejection = rejection_for(error)
    document = ProblemDocument.model_validate(
        {
            "type": f"urn:fedcore:problem:{rejection.kind.value}",
            "title": STATUS[rejection.kind][1],
            "status": rejection.status,
            "detail": rejection.detail,
            **rejection.members,
        }
    )
    headers = dict(GUARDED)
    if rejection.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if rejection.kind in (ProblemKind.BUSY, ProblemKind.TOO_MANY_STREAMS):
        headers["Retry-After"] = "10"
    if rejection.kind in (ProblemKind.STORAGE_UNAVAILABLE, ProblemKind.NOT_LEADING):
        headers["Retry-After"] = "2"
    return JSONResponse(
        document.model_dump(mode="json"),
        status_code=rejection.status,
        headers=headers,
        media_type=MEDIA_TYPE,
    )


def install(app: FastAPI, metrics: Metrics) -> None:
    """Let every error that a route raises become a problem document."""

    async def handle(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, OSError):
            if (trouble := disk_trouble(error)) is None:
                log.error("a request failed", exc_info=error)
            error = trouble or error
        if isinstance(error, StorageFull | StorageUnavailable | StorageDamaged):  # only the server's owner can end it
            cause = str(error.__cause__ or "").partition("\n")[0]  # PostgreSQL adds lines with details and hints
            log.warning("%s%s", error, f" ({cause})" if cause else "")
            metrics.storage_failed(error)
        return problem_response(error)

    for kind in (FedcoreError, OSError, RequestValidationError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, handle)


def problem_responses(*kinds: ProblemKind) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route, for the OpenAPI schema."""
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        status, _ = STATUS[kind]
        names = [other.value for other in kinds if STATUS[other][0] == status]
        responses[status] = {
            "description": "Problem: " + ", ".join(names),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return responses


def _rejection_for_http(error: HTTPException) -> Rejection:
    if error.status_code == 400:  # FastAPI's word for a body that is not even text; documented is ours
        return Rejection(ProblemKind.MALFORMED, str(error.detail))
    kind = ProblemKind.NOT_FOUND if error.status_code in (404, 405) else ProblemKind.MALFORMED
    return Rejection(kind, str(error.detail), status=error.status_code)


def _describe(error: RequestValidationError) -> str:
    """Where the first mistakes are and of what kind; neither values nor undeclared keys."""
    mistakes = []
    for item in error.errors()[:5]:
        location = [str(part) for part in item["loc"][:2]]
        if item["type"] == "extra_forbidden":
            location = location[:1]
        elif item["type"] == "json_invalid":
            location = ["body"]
        mistakes.append(f"{'.'.join(location)}: {item['type'].replace('_', ' ')}")
    return "; ".join(dict.fromkeys(mistakes))
