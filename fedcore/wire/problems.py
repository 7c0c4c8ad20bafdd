"""Why a server refuses a request: the kinds of problems, and the document that names one (RFC 9457)."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class ProblemKind(StrEnum):
    """The last part of a problem document's `type`; the client acts on it."""

    UNAUTHORIZED = "unauthorized"
    WRONG_CLOCK = "wrong-clock"
    REVOKED = "revoked"
    MALFORMED = "malformed"
    NOT_FOUND = "not-found"
    NOT_IN_COHORT = "not-in-cohort"
    STALE_STEP = "stale-step"
    NOT_NEEDED = "not-needed"
    CONFLICT = "conflict"
    TOO_LARGE = "too-large"
    DIGEST_MISMATCH = "digest-mismatch"
    PARTS_MISSING = "parts-missing"
    STORAGE_FULL = "storage-full"
    STORAGE_UNAVAILABLE = "storage-unavailable"
    NOT_LEADING = "not-leading"
    """The member `leader` of its document, if there is one, is the address of the server that leads."""
    OTHER_VERSION = "other-version"
    OTHER_TRANSCRIPT = "other-transcript"
    ROUND_FAILED = "round-failed"
    PROTOCOL_VIOLATION = "protocol-violation"
    APP_NOT_APPROVED = "app-not-approved"
    NOT_ALLOWED = "not-allowed"
    CROSS_SITE = "cross-site"
    IDENTITY_PROVIDER = "identity-provider"
    """That of the server's institution does not answer as it should."""
    TOO_MANY_STREAMS = "too-many-streams"
    BAD_CONFIGURATION = "bad-configuration"
    BUSY = "busy"
    INTERNAL = "internal"


class ProblemDocument(BaseModel):
    """A problem document (RFC 9457); `type` is `urn:fedcore:problem:<kind>`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    title: str
    status: int
    detail: str

    @property
    def kind(self) -> str:
        return self.type.rsplit(":", 1)[-1]
