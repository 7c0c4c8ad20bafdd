"""Everything that a comparison leaves in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedcore.compare.report.curves import curve_drawings, sweep_drawings
from fedcore.compare.report.details import detail_drawings
from fedcore.compare.report.document import Comparison, to_plain
from fedcore.compare.report.drawing import Drawing
from fedcore.compare.report.fairness import fairness
from fedcore.compare.report.markdown import markdown
from fedcore.compare.report.page import page
from fedcore.compare.report.summary import summarize


def report(comparison: Comparison) -> dict[str, Any]:
    """The content of report.json: the comparison, and what is computed from it."""
    return {
        **comparison.to_json(),
        "summary": to_plain(summarize(comparison)),
        "fairness": to_plain(fairness(comparison)),
    }


def drawings_of(comparison: Comparison) -> list[Drawing]:
    """Every figure that has data, in the order of the report."""
    return [*curve_drawings(comparison), *sweep_drawings(comparison), *detail_drawings(comparison)]


def write_report(comparison: Comparison, out: Path) -> dict[str, Any]:
    """Write report.json, report.html, report.md and figures/*.png below `out`; returns the content of report.json."""
    content, drawings = report(comparison), drawings_of(comparison)
    _write(out / "report.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    _write(out / "report.html", page(comparison, drawings))
    _write(out / "report.md", markdown(comparison, drawings))
    figures = out / "figures"
    figures.mkdir(exist_ok=True)
    for old in figures.glob("*.png"):
        old.unlink()
    for drawing in drawings:
        drawing.png(figures / f"{drawing.name}.png")
    return content


def _write(path: Path, text: str) -> None:
    """Whole or not at all, so that a reader never sees half a report."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
