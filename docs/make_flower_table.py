"""Writes the table of docs/flower.md: small apps (tests/flower_apps) in each mode, next to Flower's own runtime.

    python docs/make_flower_table.py                         # simulates each app
    python docs/make_flower_table.py --processes [PART ...]  # also runs them in real processes, and keeps the outcomes

With parts, only rows whose keys contain one of them are run again. Outcomes are kept in tests/flower_apps/results.json.

What Flower's own simulation gives is kept there, too: python -P tests/support/flower_results.py
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "flower.md"
KEPT = ROOT / "tests" / "flower_apps" / "results.json"
BEGIN, END = "<!-- made by make_flower_table.py -->\n", "<!-- end -->\n"
REASON_LENGTH = 150

os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.flower_processes import in_processes  # noqa: E402 - not before the path is set
from support.flower_rows import MODES, ROWS, Outcome, Row, simulated, verdict  # noqa: E402


def render() -> str:
    """The table as Markdown, apps with the same verdicts in one row; simulates every app."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    together: dict[tuple[str, ...], list[str]] = {}
    for row in ROWS:
        flower = Outcome.from_json(kept["flower"][row.key])
        cells = []
        for mode in MODES:
            process = kept["processes"][mode].get(row.key)
            outcomes = [simulated(row, mode), *([Outcome.from_json(process)] if process else [])]
            cells.append(_cell([_verdict(row, mode, outcome, flower) for outcome in outcomes]))
        together.setdefault(tuple(cells), []).append(row.title)
    lines = ["| app | " + " | ".join(MODES) + " |", "| --- | " + " | ".join("---" for _ in MODES) + " |"]
    lines += [f"| {'; '.join(apps)} | " + " | ".join(cells) + " |" for cells, apps in together.items()]
    return "\n".join(lines) + "\n"


def _verdict(row: Row, mode: str, outcome: Outcome, flower: Outcome) -> str:
    """Same, or what it was instead and why."""
    full = verdict(row, mode, outcome, flower)
    return full if full == "same" else f"{full.partition(':')[0]}: {_reason(outcome.error or full)}"


def _cell(verdicts: Sequence[str]) -> str:
    """The verdict of simulation and processes; both, if they differ."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return f"simulated: {verdicts[0]}; in processes: {verdicts[1]}"


def _reason(error: str) -> str:
    """The part of an error that says why, without the app's names and lines."""
    text = error.partition(" cannot run with secure aggregation: ")[2] or error
    text = re.sub(r"^\S+:\d+: ", "", text)
    text = re.sub(r" \([\w/.]+:\d+\)", "", text)
    text = re.split(r"\. |; (?=with)|, in place of|: of fewer", text)[0]
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH].rsplit(" ", 1)[0] + " ..."


def keep_processes(parts: Sequence[str]) -> None:
    """Run rows in real processes, and keep the outcomes."""
    rows = [row for row in ROWS if not parts or any(part in row.key for part in parts)]
    with tempfile.TemporaryDirectory() as folder:
        found = in_processes(rows, Path(folder))
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    for mode in MODES:
        kept["processes"][mode] |= {key: outcome.to_json() for key, outcome in found[mode].items()}
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Write the page."""
    if sys.argv[1:2] == ["--processes"]:
        keep_processes(sys.argv[2:])
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + render() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
