"""The reference of events, from their classes."""

from __future__ import annotations

import typing

from fedcore.wire.events import RunEvent
from sitegen.tables import code, explained, summary, table, type_name


def render() -> str:
    """A section for each kind of event."""
    parts = []
    for event in typing.get_args(RunEvent):
        said = explained(event)
        rows = [
            (code(key), type_name(found.annotation), said.get(key, ""))
            for key, found in event.model_fields.items()
            if key != "kind"
        ]
        kind = event.model_fields["kind"].default
        parts.append(f"## {kind}\n\n{summary(event)}\n\n{table(('key', 'type', 'meaning'), rows)}")
    return "\n".join(parts)
