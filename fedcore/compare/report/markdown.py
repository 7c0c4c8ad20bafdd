"""report.md: the table and the sentences, for a README or an issue."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.compare.report.document import Comparison
from fedcore.compare.report.drawing import Drawing
from fedcore.compare.report.fairness import fairness, machine_text
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
    parts += ["## How it was made", _made(comparison), "The whole report: report.html; every number: report.json."]
    return "\n\n".join(parts) + "\n"


def _made(comparison: Comparison) -> str:
    """When, on what, and with what settings."""
    made = [(source.created, source.machine) for source in comparison.sources]
    lines = [f"{when}, {machine_text(what)}" for when, what in made or [(comparison.created, comparison.machine)]]
    lines.append("seeds " + ", ".join(map(str, comparison.seeds)))
    lines.append("run config: " + ", ".join(f"{key} = {value}" for key, value in comparison.run_config.items()))
    if comparison.network is not None and comparison.cost is not None:
        step, example = comparison.cost.step * 1e3, comparison.cost.example * 1e6
        network = f"network {comparison.network.name}"
        lines.append(f"{network}; a step computes for {step:.3g} ms and {example:.3g} us an example")
    return "\n".join(f"- {line}" for line in lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [_row(head), "|---" + "|---:" * (len(head) - 1) + "|", *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
