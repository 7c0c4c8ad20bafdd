"""What people who may only look on are told of a run: nothing that an app has put into words.

The text of an app's exception may quote the data of a site, where that site's owner lets failures be told to the
server's operator. A link is good for less: of a run that failed it says that it did.
"""

from __future__ import annotations

from typing import Final

from fedcore.wire.events import ClientDropped, Recorded, RunEnded, RunOut
from fedcore.wire.operator import RunInfo, RunsOut, RunStatus
from server_app.exchanges.plain import NO_REPLY

SHOWN: Final = frozenset(
    {
        "clients", "started", "resumed", "exchange", "stage", "dropped", "blamed", "exchange-done", "exchange-failed",
        "exchange-repeated", "group", "group-ended", "figures", "ended",
    }
)  # fmt: skip
"""Kinds of events that are for viewers, too. What an app prints or asks may be about the data of a site."""
NOT_TOLD: Final = "the operator is told why"
_OWN_WORDS: Final = frozenset({RunStatus.FINISHED, RunStatus.CANCELLED})
"""How a run may end so that its reason is the server's own; any other one may be what its app raised."""


def event_for_viewers(item: Recorded) -> Recorded | None:
    """An event as viewers are told it; None where it is not for them."""
    event = item.event
    if event.kind not in SHOWN:
        return None
    if isinstance(event, RunEnded):
        told = event.model_copy(update={"reason": _reason(event.status, event.reason)})
        return item.model_copy(update={"event": told})
    if isinstance(event, ClientDropped) and event.reason.startswith(NO_REPLY):
        return item.model_copy(update={"event": event.model_copy(update={"reason": NO_REPLY})})
    return item


def runs_for_viewers(runs: RunsOut) -> RunsOut:
    """A list of runs as viewers are told it."""
    return runs.model_copy(update={"runs": [_info(run) for run in runs.runs]})


def run_for_viewers(run: RunOut) -> RunOut:
    """A run with its events as viewers are told it."""
    told = [item for item in map(event_for_viewers, run.events) if item is not None]
    return run.model_copy(update={"events": told, "reason": _reason(run.status, run.reason)})


def _info(run: RunInfo) -> RunInfo:
    return run.model_copy(update={"reason": _reason(run.status, run.reason)})


def _reason(status: RunStatus, reason: str) -> str:
    return reason if status in _OWN_WORDS or not reason else NOT_TOLD
