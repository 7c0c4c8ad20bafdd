"""Rejections: requests that the server answers with a problem document (RFC 9457), by the kind of the problem.

Storage, exchanges and runs raise them; `server_app.http.problems` makes the documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedcore.errors import PeerError
from fedcore.wire.problems import ProblemKind

STATUS: Final[Mapping[ProblemKind, tuple[int, str]]] = {
    ProblemKind.UNAUTHORIZED: (401, "The request is not signed by a member, or the token is wrong"),
    ProblemKind.WRONG_CLOCK: (401, "The clocks of the two machines differ too much"),
    ProblemKind.REVOKED: (403, "The client was revoked"),
    ProblemKind.MALFORMED: (422, "The request does not have the documented form"),
    ProblemKind.NOT_FOUND: (404, "There is nothing at this address"),
    ProblemKind.NOT_IN_COHORT: (403, "The client is not in the cohort of this exchange"),
    ProblemKind.STALE_STEP: (409, "This step is closed for the client"),
    ProblemKind.NOT_NEEDED: (409, "The exchange has as many updates as were wanted, without this client's"),
    ProblemKind.CONFLICT: (409, "The step was answered before with other content"),
    ProblemKind.TOO_LARGE: (413, "The body is larger than announced or allowed"),
    ProblemKind.DIGEST_MISMATCH: (422, "The body does not have the digest that was signed"),
    ProblemKind.PARTS_MISSING: (409, "Parts of the update are not here; send them, then its manifest again"),
    ProblemKind.STORAGE_FULL: (507, "The server's disk is full"),
    ProblemKind.STORAGE_UNAVAILABLE: (503, "The server's database or object store does not answer for now"),
    ProblemKind.NOT_LEADING: (503, "Another server of this federation leads; ask it, or again soon"),
    ProblemKind.ROUND_FAILED: (409, "The exchange has ended"),
    ProblemKind.PROTOCOL_VIOLATION: (422, "A check of the protocol failed"),
    ProblemKind.OTHER_VERSION: (426, "The client is of a version that this server does not understand"),
    ProblemKind.OTHER_TRANSCRIPT: (409, "The server does not have the transcript that the client knows"),
    ProblemKind.APP_NOT_APPROVED: (403, "The server's owner has not approved this app"),
    ProblemKind.NOT_ALLOWED: (403, "A viewer sees runs and members; it changes and downloads nothing"),
    # No 503, for the reason below.
    ProblemKind.IDENTITY_PROVIDER: (500, "The identity provider does not answer the server as it should"),
    ProblemKind.CROSS_SITE: (403, "A page of another site may have sent the request"),
    ProblemKind.TOO_MANY_STREAMS: (429, "Too many live streams are open from one address"),
    ProblemKind.BAD_CONFIGURATION: (422, "The configuration cannot work"),
    # No 503: a proxy would take the server that leads for one that stands by, and leave it alone for a while.
    ProblemKind.BUSY: (429, "The server takes no more work for now"),
    ProblemKind.INTERNAL: (500, "The server failed"),
}
"""HTTP status and title of every kind."""


class Rejection(PeerError):
    """A request that the server answers with a problem document of a given kind."""

    def __init__(self, kind: ProblemKind, detail: str, *, status: int | None = None, **members: str) -> None:
        super().__init__(detail, check=members.get("check", ""))
        self.kind = kind
        self.detail = detail
        self.status = status if status is not None else STATUS[kind][0]
        self.members = members
