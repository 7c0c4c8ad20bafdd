"""What stays of runs that have ended, and for how long."""

from __future__ import annotations

import logging
from typing import Final

from fedcore.wire.operator import RunStatus
from server_app.runs.files.run_files import RunKeys
from server_app.services import Services
from server_app.storage.tables import RunRow

log = logging.getLogger("fedcore.server")

_DAY: Final = 86_400.0
_PAGE: Final = 200
_LATELY: Final = 4
"""Runs that may have ended with their journal still there: the process ended before it could be removed."""


async def drop_journal(services: Services, run: str) -> None:
    """A run that has finished is never resumed: remove what only that would need.

    Its initial model stays with its app, for a run that is to be the same again.
    """
    keys = RunKeys(run)
    for key in (keys.exchanges, keys.checkpoint, keys.checkpoints):
        await services.objects.remove(key)
    await services.store.drop_steps_from(run, 1)


async def remove_expired(services: Services) -> None:
    """Forget the runs that ended more than keep-days ago, and those beyond the newest keep-runs that have ended.

    What stays of them for ever are their records in the federation's transcript.
    """
    for row in await services.store.list_runs(_LATELY, status=RunStatus.FINISHED):
        if await services.store.steps(row.run):
            await drop_journal(services, row.run)
    settings = services.settings
    if not settings.keep_runs and not settings.keep_days:
        return
    ended, before = 0, ""
    while rows := await services.store.list_runs(_PAGE, before):
        for row in rows:
            if RunStatus(row.status).final:
                ended += 1
                if (settings.keep_runs and ended > settings.keep_runs) or _is_old(services, row):
                    await _forget(services, row.run)
        before = rows[-1].run
        if len(rows) < _PAGE:
            return


def _is_old(services: Services, row: RunRow) -> bool:
    days = services.settings.keep_days
    return bool(days) and row.ended_at is not None and services.wall() - row.ended_at > days * _DAY


async def _forget(services: Services, run: str) -> None:
    """The files first: a row without files is forgotten the next time, files without a row never would be."""
    await services.objects.remove(RunKeys(run).all)
    if await services.store.forget_run(run):
        log.info("run %s is forgotten: it ended long ago (keep-runs, keep-days)", run)
