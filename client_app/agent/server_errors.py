"""What an error of the server means for the agent: final, passing, or new to the log."""

from __future__ import annotations

from client_app.http.errors import is_for_now
from fedcore.errors import (
    FedcoreError,
    NotAccepted,
    ProtocolViolation,
    Refused,
    ServerUnreachable,
    Unauthorized,
    WrongClock,
)
from fedcore.federation.roster import REVOKED, ROSTER_CHECKS
from fedcore.federation.transcript import TRANSCRIPT_FORK
from fedcore.wire.problems import ProblemKind


def may_pass(error: FedcoreError) -> bool:
    """Whether the same request may succeed later without a change on this machine.

    So it may if the server's roster does not follow the one known here, or does not admit this client yet, or if an
    older state of the server was put back: the server's owner can correct that, and a restart of this agent would
    change nothing.
    """
    if isinstance(error, ProtocolViolation):
        return error.check in ROSTER_CHECKS or error.check == TRANSCRIPT_FORK
    waits = isinstance(error, ServerUnreachable | WrongClock | NotAccepted)
    return waits or (isinstance(error, Refused) and is_for_now(error))


def kind_of_answer(error: FedcoreError) -> str:
    """The kind of an answer that somebody has to act on; "" if no server answered, or one that does not serve now.

    The log has each kind once, also after an outage: a server may come back without knowing this client.
    """
    match error:
        case ProtocolViolation(check=check):
            return check
        case Refused(kind=kind):
            return "" if is_for_now(error) else kind
        case Unauthorized():
            return type(error).__name__
    return ""


def remedy(error: FedcoreError, *, joined: bool) -> str:
    """What to do if the server does not accept a client that it never saw.

    Args:
        error: the server's answer.
        joined: whether a server accepted this client before.
    """
    if joined or not isinstance(error, NotAccepted):
        return ""
    return (
        ". If this client was admitted only now, the federation's operator has yet to publish the roster that names it "
        "(fedcore federation publish)"
    )


def is_revocation(error: FedcoreError | OSError) -> bool:
    """Whether this client was revoked, which is final."""
    if isinstance(error, ProtocolViolation):
        return error.check == REVOKED
    return isinstance(error, Refused) and error.kind == ProblemKind.REVOKED
