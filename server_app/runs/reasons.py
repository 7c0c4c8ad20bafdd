"""Why the last attempt at an exchange failed, as the run's operator reads it."""

from __future__ import annotations

from typing import Final

from fedcore.admission.refusals import refused_by_all, refused_by_some
from fedcore.attempts import final_reason
from fedcore.config import JobSettings
from fedcore.errors import RoundFailed
from fedcore.wire import WithdrawalReason
from server_app.exchanges.ending import ExchangeEnd

_REFUSALS: Final = (WithdrawalReason.POLICY, WithdrawalReason.PROTOCOL_VIOLATION, WithdrawalReason.APP_MISMATCH)


def explain(error: RoundFailed, end: ExchangeEnd, settings: JobSettings) -> str:
    """The error itself, or what all or some clients said why they left."""
    withdrawals = end.withdrawals.values()
    reason = final_reason(error, settings)
    if reason != str(error):
        return reason
    if end.common is None:
        return "; ".join(filter(None, (reason, refused_by_some(withdrawals))))
    if end.common in _REFUSALS:
        return refused_by_all(withdrawals)
    checks = {withdrawal.why for withdrawal in withdrawals} - {""}
    detail = f" ({', '.join(sorted(checks))})" if checks else ""
    return f"every client withdrew: {end.common.value}{detail}; the clients' own logs say more"
