"""Modules that few tests need and that take long to import: each worker of the tests imports all files of tests."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """A module that is imported when something of it is needed first."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
