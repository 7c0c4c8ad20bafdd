"""Numbers as people read them, in logs, tables and reports alike."""

from __future__ import annotations

from typing import Final

from fedcore.wire.uploads import Contribution

DEFAULT_FEDERATION: Final = "federation"
"""The name of a federation that nobody named."""


def size(value: float) -> str:
    """Bytes, in decimal units."""
    if value < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} GB"


def the_federation(name: str) -> str:
    """A federation by its name, if somebody gave it one."""
    return "the federation" if name == DEFAULT_FEDERATION else f"the federation {name}"


def count_of(count: int, what: str) -> str:
    """A count with its noun."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def contribution_text(gave: Contribution) -> str:
    """What a site gave, in a few words."""
    return f"in {count_of(gave.exchanges, 'exchange')}, updates of {size(gave.update_bytes)}"
