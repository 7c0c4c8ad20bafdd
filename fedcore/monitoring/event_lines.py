"""An event of a run as one line of text, for a server's log and for reading a run's events afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcore.system.terminal import visible
from fedcore.wire.events import AppPrinted, RunEvent


def event_line(event: RunEvent) -> str:
    """The kind of the event and what it says, without what is empty; of the app its line. No terminal obeys it."""
    if isinstance(event, AppPrinted):
        return f"app: {visible(event.line)}"
    data: Mapping[str, Any] = event.model_dump(exclude={"kind"})
    pairs = ((key, value) for key, value in data.items() if value not in (None, "", [], {}))
    return f"{event.kind}: " + ", ".join(f"{key} {visible(_short(value))}" for key, value in pairs)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        names = [str(item) for item in value[:8]]
        return "[" + " ".join(names) + (" ...]" if len(value) > 8 else "]")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(item)}" for key, item in list(value.items())[:8]) + "}"
    return str(value)
