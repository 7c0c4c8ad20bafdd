"""Withdrawals: what a client tells the server when it leaves an exchange, fixed names and two numbers, never text."""

from __future__ import annotations

from typing import Final

from client_app.exchange.eligibility import NotEligible
from client_app.ranks.failures import AppFailed, RankFailed
from fedcore.errors import (
    AppError,
    DataError,
    EncodingError,
    FedcoreError,
    OutOfMemory,
    ProtocolViolation,
    Refused,
    RoundFailed,
    ServerUnreachable,
    StorageFull,
    Unauthorized,
    WorkerDied,
    WrongClock,
)
from fedcore.federation.admission import checks
from fedcore.run.plain import APP_CRASHED, APP_RAISED, app_raised, reply_error
from fedcore.secagg import Check
from fedcore.wire.problems import ProblemKind
from fedcore.wire.uploads import NUMBERED_CHECKS, ComplaintIn, ReplyError, WithdrawalReason, WithdrawIn

_OVER: Final = frozenset(
    {
        ProblemKind.STALE_STEP,
        ProblemKind.NOT_NEEDED,
        ProblemKind.ROUND_FAILED,
        ProblemKind.NOT_FOUND,
        ProblemKind.NOT_IN_COHORT,
    }
)
"""Problems that tell a client that the exchange goes on without it, or not at all."""
_POLICY: Final = frozenset(
    {
        checks.CONFIG_NOT_ALLOWED,
        checks.MESSAGE_NOT_ALLOWED,
        checks.MODEL_TOO_LARGE,
        checks.TOO_MANY_TENSORS,
        checks.TOO_LONG,
        checks.TOO_SHORT,
        checks.TOO_MANY_EXCHANGES,
        checks.TOO_MANY_RELEASES,
        checks.TREE_TOO_DEEP,
        checks.NODE_TOO_SMALL,
        checks.NOT_PLANNED,
        checks.DIFFERENCING,
        checks.FIRST_MODEL,
        checks.OTHER_QUESTION,
        checks.WEIGHT_KEY,
        checks.PLAIN_NOT_ALLOWED,
        checks.BUFFERED_NOT_ALLOWED,
        checks.CORRUPT_BELOW_MINIMUM,
        checks.AGREEMENT_NOT_ALLOWED,
        checks.PRIVACY_REQUIRED,
        checks.TOO_LITTLE_NOISE,
        checks.PRIVACY_BUDGET,
        Check.COHORT_BELOW_MINIMUM,
        Check.THRESHOLD_BELOW_MINIMUM,
    }
)


class BadDealing(ProtocolViolation):
    """A neighbour cheated in what it sealed for this client; `complaint` proves it to the server and to anybody."""

    def __init__(self, refusal: ProtocolViolation, complaint: ComplaintIn) -> None:
        super().__init__(refusal.check, str(refusal).partition(": ")[2], peer=refusal.peer)
        self.complaint = complaint


def withdrawal_for(error: BaseException) -> WithdrawIn | None:
    """The withdrawal for `error`: a fixed reason, the name of a check and the numbers that it compared, never its text.

    None if the server ended the exchange itself.
    """
    match error:
        case BadDealing(check=check, complaint=complaint):
            return WithdrawIn(reason=WithdrawalReason.PROTOCOL_VIOLATION, check=check, complaint=complaint)
        case ProtocolViolation(check=check, subject=subject):
            numbers = {"asked": error.asked, "allowed": error.allowed} if check in NUMBERED_CHECKS else {}
            return WithdrawIn(reason=_reason(check), check=check, subject=subject, **numbers)
        case AppError() | DataError() | EncodingError() | WorkerDied():
            return _local_failure(error)
        case NotEligible():
            return WithdrawIn(reason=WithdrawalReason.NOT_ELIGIBLE)
        case StorageFull():
            return WithdrawIn(reason=WithdrawalReason.STOPPED, check="storage-full")
        case OutOfMemory():
            return WithdrawIn(reason=WithdrawalReason.STOPPED, check="out-of-memory")
        case Refused(kind=kind) if kind in _OVER:
            return None
        case Refused(kind=kind):  # an unknown kind could be text of the server's choice
            check = f"server-{kind}" if kind in set(ProblemKind) else "refused"
            return WithdrawIn(reason=WithdrawalReason.STOPPED, check=check)
        case WrongClock():
            return WithdrawIn(reason=WithdrawalReason.STOPPED, check="wrong-clock")
        case ServerUnreachable() | Unauthorized():  # sent with the next contact
            return WithdrawIn(reason=WithdrawalReason.STOPPED, check="unreachable")
        case RoundFailed():
            return WithdrawIn(reason=WithdrawalReason.STOPPED, check="timeout")
    return WithdrawIn(reason=WithdrawalReason.STOPPED, check="internal")


def plain_error(error: FedcoreError) -> ReplyError:
    """The error that the ServerApp of a plain exchange gets instead of a reply."""
    match error:
        case AppFailed(traceback=traceback):
            return app_raised((traceback.strip().splitlines() or [str(error)])[-1])
        case WorkerDied():
            return reply_error(APP_CRASHED, str(error))
    return reply_error(APP_RAISED, str(error))


def _local_failure(error: FedcoreError) -> WithdrawIn:
    match error:
        case AppFailed(check=check):
            return WithdrawIn(reason=WithdrawalReason.APP_FAILED, check=check)
        case RankFailed(check=check):
            return WithdrawIn(reason=WithdrawalReason.WORKER_DIED, check=check)
        case DataError():
            return WithdrawIn(reason=WithdrawalReason.APP_FAILED)
        case AppError():
            return WithdrawIn(reason=WithdrawalReason.WRONG_RECORDS)
        case EncodingError():
            return WithdrawIn(reason=WithdrawalReason.UPDATE_REFUSED)
    return WithdrawIn(reason=WithdrawalReason.WORKER_DIED)


def _reason(check: str) -> WithdrawalReason:
    if check in _POLICY:
        return WithdrawalReason.POLICY
    return WithdrawalReason.APP_MISMATCH if check == checks.APP_MISMATCH else WithdrawalReason.PROTOCOL_VIOLATION
