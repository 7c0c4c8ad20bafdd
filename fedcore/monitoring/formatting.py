"""Numbers as people read them, in logs, tables and reports alike."""

from __future__ import annotations


def size(value: float) -> str:
    """Bytes, in decimal units."""
    if value < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} GB"
