"""`fedcore demo`: the first thing to see, with nothing to prepare."""

from __future__ import annotations

from pathlib import Path

SITES = 4


def digits() -> Path:
    """The folder of the app that is trained: examples/digits, which a wheel has beside this file (setup.py)."""
    here = Path(__file__).parent
    shipped = here / "digits"
    return shipped if shipped.is_dir() else here.parents[1] / "examples" / "digits"
