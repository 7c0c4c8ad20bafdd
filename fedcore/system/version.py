"""The version of the installed distribution."""

from __future__ import annotations

import importlib.metadata


def fedcore_version() -> str:
    """Such as "0.1.0"; "0+unknown" for a source tree that is not installed."""
    try:
        return importlib.metadata.version("fedcore")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"
