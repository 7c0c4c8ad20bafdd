"""The list of runs, made from their rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fedcore.wire.operator import MOST_LISTED, RunInfo, RunsOut, RunStatus
from fedcore.wire.tasks import ModelRef
from server_app.storage.store import Store
from server_app.storage.tables import RunRow


async def list_runs(store: Store, *, limit: int, before: str, status: RunStatus | None) -> RunsOut:
    """At most `limit` runs, the newest first, of those that were submitted before the run `before`, if one is named."""
    limit = min(limit, MOST_LISTED)
    rows = await store.list_runs(limit + 1, before, status)
    waiting = await waiting_runs(store)
    return RunsOut(runs=[run_info(row, waiting) for row in rows[:limit]], more=len(rows) > limit)


async def waiting_runs(store: Store) -> list[str]:
    """The ids of the runs that wait, in the order in which they will be led."""
    rows = await store.list_runs(MOST_LISTED, "", RunStatus.WAITING)
    return [row.run for row in reversed(rows)]


def run_info(row: RunRow, waiting: Sequence[str]) -> RunInfo:
    """One run, for the list.

    row
        Of the database.
    waiting
        Result of `waiting_runs`.
    """
    return RunInfo(**columns(row, waiting))


def columns(row: RunRow, waiting: Sequence[str]) -> dict[str, Any]:
    """The fields of a `RunInfo`."""
    return {
        "run": row.run,
        "status": RunStatus(row.status),
        "reason": row.reason,
        "aggregation": row.aggregation,
        "app": row.app,
        "app_sha256": row.app_sha256,
        "submitted_at": _time(row.submitted_at),
        "started_at": _time(row.started_at),
        "ended_at": _time(row.ended_at),
        "rounds": row.rounds,
        "epsilon": row.epsilon,
        "position": waiting.index(row.run) + 1 if row.run in waiting else None,
        "model": ModelRef(sha256=row.model_sha256, size=row.model_size) if row.model_sha256 else None,
    }


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
