"""The vectors as a whole, made anew: seconds, because the curve's arithmetic is Python's."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

VECTORS = Path(__file__).parents[2] / "vectors"


def test_the_file_is_what_its_script_makes(monkeypatch):
    """The bytes of version 3: whatever changes them is a new version of the protocol."""
    monkeypatch.syspath_prepend(VECTORS)
    monkeypatch.setattr(sys, "argv", ["make_secagg_v3.py", "--check"])
    importlib.import_module("make_secagg_v3").main()
