"""The reference of report.json, from the classes that it is made of."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedcore.comparison.report.document import Comparison
from fedcore.comparison.results import RunResult
from sitegen.tables import code, explained, table


def render() -> str:
    """A section for the report, and one for each of its runs."""
    return f"## The report\n\n{_keys(Comparison)}\n\n## A run\n\n{_keys(RunResult)}"


def _keys(kind: Any) -> str:
    said = explained(kind)
    return table(("key", "meaning"), [(code(field.name), said[field.name]) for field in dataclasses.fields(kind)])
