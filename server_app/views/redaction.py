"""Redaction of runs and events for viewers: no text that an app has written.

The text of an app's exception may quote the data of a site, if that site's owner lets the operator see failures. A
read-only link shows less: that a run failed, and not why.
"""

from __future__ import annotations

from typing import Final

from fedcore.wire.events import ClientDropped, Recorded, RunEnded, RunOut
from fedcore.wire.operator import RunInfo, RunsOut, RunStatus
from server_app.exchanges.plain import NO_REPLY

VISIBLE_KINDS: Final = frozenset(
    {
        "clients", "started", "resumed", "exchange", "stage", "dropped", "blamed", "exchange-done", "exchange-failed",
        "exchange-repeated", "group", "group-ended", "figures", "traffic",
        "ended",
    }
)  # fmt: skip
"""Kinds of events that are for viewers, too. What an app prints or asks may be about the data of a site."""
NO_REASON: Final = "ask the operator for the reason"
_OWN_WORDS: Final = frozenset({RunStatus.FINISHED, RunStatus.CANCELLED})
"""How a run may end so that its reason is the server's own; any other one may be what its app raised."""


def event_for_viewers(item: Recorded) -> Recorded | None:
    """An event as viewers see it; None if it is not for them."""
    event = item.event
    if event.kind not in VISIBLE_KINDS:
        return None
    if isinstance(event, RunEnded):
        redacted = event.model_copy(update={"reason": _reason(event.status, event.reason)})
        return item.model_copy(update={"event": redacted})
    if isinstance(event, ClientDropped) and event.reason.startswith(NO_REPLY):
        return item.model_copy(update={"event": event.model_copy(update={"reason": NO_REPLY})})
    return item


def runs_for_viewers(runs: RunsOut) -> RunsOut:
    """A list of runs as viewers see it."""
    return runs.model_copy(update={"runs": [_info(run) for run in runs.runs]})


def run_for_viewers(run: RunOut) -> RunOut:
    """A run with its events as viewers see it."""
    visible = [item for item in map(event_for_viewers, run.events) if item is not None]
    return run.model_copy(update={"events": visible, "reason": _reason(run.status, run.reason)})


def _info(run: RunInfo) -> RunInfo:
    return run.model_copy(update={"reason": _reason(run.status, run.reason)})


def _reason(status: RunStatus, reason: str) -> str:
    return reason if status in _OWN_WORDS or not reason else NO_REASON
