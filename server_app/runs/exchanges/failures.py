"""Why the last attempt at an exchange failed, as the run's operator reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedcore.errors import RoundFailed
from fedcore.federation.admission.refusals import refused_by_all, refused_by_some
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.retries import final_reason
from fedcore.run.settings import JobSettings
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason

_REFUSALS: Final = (WithdrawalReason.POLICY, WithdrawalReason.PROTOCOL_VIOLATION, WithdrawalReason.APP_MISMATCH)


def explain(
    error: RoundFailed, end: ExchangeOutcome, task: Task, settings: JobSettings, names: Mapping[int, str]
) -> str:
    """The error itself, or what all or some clients said why they left. names: of the members."""
    reason = final_reason(error, settings)
    if reason != str(error):
        return reason
    if end.common is None:
        refusals = {names[client]: withdrawal for client, withdrawal in end.withdrawals.items()}
        return "; ".join(filter(None, (reason, refused_by_some(refusals, queries=task.queries))))
    withdrawals = end.withdrawals.values()
    if end.common in _REFUSALS:
        return refused_by_all(withdrawals, queries=task.queries)
    checks = {withdrawal.why for withdrawal in withdrawals} - {""}
    detail = f" ({', '.join(sorted(checks))})" if checks else ""
    return f"every client withdrew: {end.common.value}{detail}; the clients' own logs say more"
