"""report.md: the table and the sentences, for a README or an issue."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.compare.report.document import Comparison
from fedcore.compare.report.drawing import Drawing
from fedcore.compare.report.fairness import fairness
from fedcore.compare.report.headline import headline
from fedcore.compare.report.tables import CAPTION, SIMULATED, failure_rows, loss_rows, main_table


def markdown(comparison: Comparison, drawings: Sequence[Drawing]) -> str:
    """drawings: the PNGs in figures/; the first is shown."""
    head, rows = main_table(comparison)
    parts = [
        f"# {comparison.app}: {comparison.sites} sites, partition {comparison.partition}",
        *headline(comparison),
        _table(head, rows),
        CAPTION + (f" {SIMULATED}" if comparison.simulated else ""),
    ]
    if drawings:
        parts.append(f"![{drawings[0].title}](figures/{drawings[0].name}.png)")
    if failed := failure_rows(comparison):
        parts += ["## Runs without a result", _table(("mode", "seed", "set", "reason"), failed)]
    if lost := loss_rows(comparison):
        head = ("mode", "seed", "worker", "after round", "what became of the run", "until then")
        parts += ["## What was lost", _table(head, lost)]
    checks = [(check.name, check.status, check.detail) for check in fairness(comparison)]
    parts += ["## Fairness", _table(("check", "status", "what was compared"), checks)]
    parts.append("The whole report: report.html; every number: report.json.")
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [_row(head), "|---" + "|---:" * (len(head) - 1) + "|", *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
