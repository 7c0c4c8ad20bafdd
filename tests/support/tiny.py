"""The tiny app: its folder, and its problem as a module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

TINY = Path(__file__).parents[1] / "apps" / "tiny"


def load_problem() -> Any:
    """The app's own data, model and gradient."""
    if str(TINY) not in sys.path:
        sys.path.insert(0, str(TINY))
    return importlib.import_module("tiny_app.problem")
