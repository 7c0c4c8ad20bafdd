"""Failures of HTTPS as fedcore errors, for the agent and the operator's commands.

Nobody answers: ServerUnreachable. Somebody else does, by their certificate, or the server does not know who asks:
Unauthorized. The server answers with any other problem document: Refused. A certificate that is wrong stays wrong; a
server that does not answer may be starting, and one whose certificate has expired may get a new one.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx
import pydantic

from client_app.output import clean
from fedcore.errors import EnvironmentFailure, NotAccepted, Refused, ServerUnreachable, Unauthorized, WrongClock
from fedcore.system.network.proxies import name_of_way_out
from fedcore.wire.problems import ProblemDocument, ProblemKind


class ConnectionFailed(Exception):
    """A request of the agent failed on its way, or could not be signed; the cause says how."""


NETWORK_ERRORS: Final = (ConnectionFailed, httpx.TransportError)
"""Of the agent, and of the operator's command."""
AWAY: Final = frozenset({429, 502, 503, 504})
"""Answers of a server that does not serve now, and of a proxy that finds none."""
_STAYS: Final = frozenset({ProblemKind.BUSY, ProblemKind.STORAGE_UNAVAILABLE})
"""Kinds of problems of the very server that leads: no other one could do better."""

_OF_PROXIES: Final = {
    403: "a proxy on the way does not let the request through",
    413: "a proxy in front of the server takes no body of this size; its owner raises the limit (client_max_body_size "
    "of nginx)",
    502: "a proxy in front of the server does not reach it",
    504: "a proxy in front of the server gets no answer from it in time",
}
"""By status: what an answer means that is no problem document, as all of the server's are."""
_OUT_OF_TIME: Final = {
    # X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL
    9: "is not valid yet; check the clock of this machine",
    10: "has expired; the server's owner has to renew it, unless the clock of this machine is wrong",
}


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts the certificate authorities of the kit and no others; None for those of the system."""
    return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)


def unanswered(servers: Sequence[str], error: Exception) -> Unauthorized | ServerUnreachable:
    """The error for a request that got no answer from any of these addresses."""
    url = " or ".join(servers)
    if isinstance(error.__cause__, EnvironmentFailure):
        return ServerUnreachable(str(error.__cause__))
    if (failure := _certificate_failure(error)) is not None:
        if (why := _OUT_OF_TIME.get(failure.verify_code)) is not None:
            return ServerUnreachable(f"the certificate of the server at {url} {why}")
        what = clean(failure.verify_message)
        return Unauthorized(
            f"the server at {url} is not the one of this kit ({what}); check server-url and ca.crt. A proxy that opens "
            "TLS shows a certificate of its own: have it make an exception for this address, or name its authority in "
            "tls-ca"
        )
    proxy = name_of_way_out(servers[0])
    where = f"{url} by the proxy at {proxy}, which the environment names" if proxy else url
    return ServerUnreachable(f"no fedcore server answers at {where} ({clean(str(error)) or type(error).__name__})")


def may_pass(error: BaseException) -> bool:
    """Whether a request that failed so may succeed when it is sent again, without a change on this machine."""
    failure = _certificate_failure(error)
    return isinstance(error, NETWORK_ERRORS) and (failure is None or failure.verify_code in _OUT_OF_TIME)


def is_away(error: BaseException) -> bool:
    """Whether no server that leads took the request."""
    return isinstance(error, NETWORK_ERRORS) or (isinstance(error, Refused) and error.status in AWAY)


def is_for_now(error: Refused) -> bool:
    """Whether a server that refused a request may take it later as it is."""
    return error.status >= 500 or is_away(error)


def leads_elsewhere(error: BaseException) -> bool:
    """Whether the next address of the federation may do better."""
    return is_away(error) and not (isinstance(error, Refused) and error.kind in _STAYS)


def next_server(urls: Sequence[str], at: int, error: BaseException) -> int:
    """Which address follows on one that failed: the leader's, if the server named it, or the next one.

    Only addresses of the kit count: no server sends anybody to one that the kit's owner does not know.
    """
    leader = error.leader if isinstance(error, Refused) else ""
    known = leader in urls and leader != urls[at]
    return urls.index(leader) if known else (at + 1) % len(urls)


def refusal(status: int, body: bytes, *, of: str) -> Unauthorized | Refused:
    """The error for an answer that is no success.

    Args:
        status: of the answer.
        body: of the answer, a problem document or not.
        of: what the server does not accept if the status is 401.
    """
    try:
        problem = ProblemDocument.model_validate_json(body)
        kind, detail = clean(problem.kind), clean(problem.detail)[:500]
        leader = str((problem.model_extra or {}).get("leader", ""))
    except pydantic.ValidationError:
        detail = _OF_PROXIES.get(status, "the server answered without a problem document")
        kind, leader = "", ""
    if status == HTTPStatus.UNAUTHORIZED:
        return (WrongClock if kind == ProblemKind.WRONG_CLOCK else NotAccepted)(
            f"the server does not accept {of}: {detail}"
        )
    return Refused(status, kind, detail, leader=leader)


def _certificate_failure(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Why the certificate was refused, when that is at the root of `error`."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None
