"""Statistics of columns that a run takes from an earlier one, out of the federation's transcript.

What clients were sent in a sum that enough of them signed is in its record, which stays when the run is forgotten. So
an operator names a run and never the numbers themselves: nobody can choose a scale that singles a record out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from fedcore.data.statistics import message_statistics
from fedcore.wire.operator import RunIn
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import is_query
from server_app.rejection import Rejection
from server_app.storage.store import Store

_LATELY: Final = 50
"""Runs among which one with statistics is looked for."""


async def known_statistics(store: Store, body: RunIn) -> dict[str, Any]:
    """What a submission takes of the run that it names, as `RunRow.known_statistics`; Rejection if there is nothing."""
    if body.initial_model or body.statistics is not None:
        raise Rejection(
            ProblemKind.BAD_CONFIGURATION,
            "a run that begins with an earlier model has that model's statistics, and one that asks for statistics "
            "takes none: leave --statistics-from out",
        )
    values, _ = await _of_run(store, body.statistics_from)
    if not values:
        raise Rejection(
            ProblemKind.NOT_FOUND,
            f"no sum of run {body.statistics_from} has statistics of columns: the run is unknown here, nothing was "
            "summed in it under masks, or its app asks for none. Name a secure run of this app that trained "
            "(fedcore runs list)",
        )
    return {"run": body.statistics_from, "values": values}


async def refused_query_advice(
    store: Store, app: str, cohort: Collection[int], members: Collection[int], names: Mapping[int, str]
) -> str:
    """Who is missing and who is new since the app's last run with statistics, and the command that takes these.

    "" if there is no such run.

    Args:
        app: its name.
        cohort: who was asked and refused.
        members: of the roster.
        names: of members and former members.
    """
    for row in await store.list_runs(_LATELY):
        values, clients = await _of_run(store, row.run) if row.app == app and row.rounds else ({}, frozenset[int]())
        if values:
            parts = (
                ("left", clients - set(members)),
                ("away now", (clients & set(members)) - set(cohort)),
                ("new", set(cohort) - clients),
            )
            changes = [f"{what}: {', '.join(sorted(names[one] for one in who))}" for what, who in parts if who]
            since = f" (since then {'; '.join(changes)})" if changes else ""
            return (
                f"Run {row.run} has such statistics{since}. To take them and ask no site: fedcore run APP_DIR "
                f"--statistics-from {row.run}"
            )
    return ""


async def _of_run(store: Store, run: str) -> tuple[dict[str, Any], frozenset[int]]:
    """The statistics that clients were sent in a run's last sums, and which clients; {} if there are none."""
    for task in await store.sums_of_run(run):
        values = {} if is_query(task["message_type"]) else message_statistics(task["configs"])
        if values:
            return values, frozenset(task["cohort"])
    return {}, frozenset()
