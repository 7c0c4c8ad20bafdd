"""What a part of `benchmarks/gpu.py` finds, on its way from the part's process to the report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import Figure

Row = tuple[str, ...]


class Found:
    """What a part has found so far, kept in a file as it comes: a part that fails or is ended loses the rest only."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.figures: list[dict[str, Any]] = []
        self.rows: list[Row] = []
        self.notes: list[str] = []

    def figure(self, name: str, value: float, *, aim: float, at_least: bool = False, unit: str = "ratio") -> None:
        """A figure, as in `common.Figure`."""
        figure = Figure(name=name, value=value, aim=aim, at_least=at_least, unit=unit)
        self.figures.append(asdict(figure))
        self._keep()

    def row(self, row: Row) -> None:
        """A row, as `benchmarks.gpu.HEADER` says."""
        self.rows.append(row)
        self._keep()

    def note(self, text: str) -> None:
        """A sentence for people."""
        self.notes.append(text)
        self._keep()

    def _keep(self) -> None:
        found = {"figures": self.figures, "rows": self.rows, "notes": self.notes}
        beside = self._file.with_suffix(".new")
        beside.write_text(json.dumps(found), encoding="utf-8")
        beside.replace(self._file)
