"""A run that its operator follows, told to trackers."""

from __future__ import annotations

from collections.abc import Sequence

from client_app.operator.client import OperatorClient
from client_app.operator.following import Screen
from fedcore.monitoring.trackers import Track, TrackedRun, Tracking

_SKIP_EVENTS = 2**31 - 1


def begin_tracking(client: OperatorClient, run: str, tracks: Sequence[Track], screen: Screen) -> Tracking:
    """Open the trackers of a run that the server knows; with none, nothing is asked."""

    def warn(line: str) -> None:
        screen.note(f"warning: {line}")

    if not tracks:
        return Tracking(warn)
    found = client.show(run, after=_SKIP_EVENTS)
    tracked = TrackedRun(
        name=run,
        run=run,
        app=found.app,
        app_sha256=found.app_sha256,
        run_config=found.run_config,
        settings=found.settings,
        tags={"aggregation": found.aggregation},
    )
    return Tracking.begin(tracks, tracked, warn)
