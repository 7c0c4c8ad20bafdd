"""Experiment trackers for a run that its operator follows."""

from __future__ import annotations

from collections.abc import Sequence

from client_app.operator.client import OperatorClient
from client_app.operator.following import Screen
from fedcore.monitoring.trackers import Track, TrackedRun, Tracking

_SKIP_EVENTS = 2**31 - 1


def begin_tracking(client: OperatorClient, run: str, tracks: Sequence[Track], screen: Screen) -> Tracking:
    """Open the trackers for a run of the server; without trackers it asks for nothing."""

    def warn(line: str) -> None:
        screen.note(f"warning: {line}")

    if not tracks:
        return Tracking(warn)
    state = client.show(run, after=_SKIP_EVENTS)
    tracked = TrackedRun(
        name=run,
        run=run,
        app=state.app,
        app_sha256=state.app_sha256,
        run_config=state.run_config,
        settings=state.settings,
        tags={"aggregation": state.aggregation},
    )
    return Tracking.begin(tracks, tracked, warn)
