"""Failures and timing of the local work, which the server must not see.

From the moment that the local work of a secure exchange begins, what this client sends follows from the protocol alone
(docs/protocol.md, "Constant behaviour"). A failure of data, app or ranks turns the update into a masked zero, and adds
one to the count of failures in the sum. Only the owner's log has the reason.
"""

from __future__ import annotations

import math
import traceback

from client_app.exchange.eligibility import NotEligible
from client_app.output import Output
from client_app.ranks.failures import AppFailed
from fedcore.errors import FedcoreError, ProtocolViolation, Refused
from fedcore.federation import Policy
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import Task


def tells_failures(task: Task, policy: Policy) -> bool:
    """Whether this client reports failures to the server; in plain mode the server reads the updates anyway."""
    return task.aggregation == "plain" or policy.report_failures


def seconds_to_pad(elapsed: float, *, pad: float, limit: float) -> float:
    """How long an upload that could begin after `elapsed` seconds waits for the next whole multiple of `pad`.

    Never beyond `limit`, the time that the task allows; 0 if `pad` is 0.
    """
    if not pad:
        return 0.0
    return max(min(math.ceil(elapsed / pad) * pad, limit) - elapsed, 0.0)


def show_nothing(output: Output, error: Exception) -> None:
    """Log for the owner alone why this client contributes nothing."""
    for line in _trace(error):
        output.error("app", line)
    text = str(error) if isinstance(error, FedcoreError | OSError) else f"the local work failed: {type(error).__name__}"
    output.error("failed", f"{text}; sending an empty update; the reason stays on this machine")


def show_failure(output: Output, error: FedcoreError) -> None:
    """Log why the local work failed, which a plain exchange also reports to the server."""
    for line in _trace(error):
        output.error("app", line)
    output.error("failed", f"{error}; the ServerApp receives this error")


def show_end(output: Output, error: FedcoreError | OSError) -> None:
    """Log why an exchange ended for this client."""
    match error:
        case NotEligible():
            output.info("withdrawn", f"left the exchange, {error}")
        case ProtocolViolation():
            output.error("refused", f"refused: {error}", check=error.check)
        case Refused(kind=ProblemKind.NOT_NEEDED):
            output.info("ended", "not needed: enough faster clients had already finished; nothing went wrong here")
        case Refused():
            output.warning("ended", f"the exchange ended for this client: {error}")
        case _:
            for line in _trace(error):
                output.error("app", line)
            output.error("withdrawn", str(error))


def _trace(error: Exception) -> list[str]:
    """The traceback of an error in the app, or of an unexpected one in fedcore."""
    if isinstance(error, AppFailed):
        return error.traceback.rstrip().splitlines()
    if isinstance(error, FedcoreError | OSError):
        return []
    return "".join(traceback.format_exception(error)).rstrip().splitlines()
