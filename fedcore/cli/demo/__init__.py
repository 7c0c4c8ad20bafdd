"""`fedcore demo`: the first thing to see, with nothing to prepare."""

from __future__ import annotations

from pathlib import Path

SITES = 4


def digits() -> Path:
    """The folder of the app that is trained: examples/digits, file by file, so that every installation has it."""
    return Path(__file__).parent / "digits"
