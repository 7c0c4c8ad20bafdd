"""Apps as Flower's documentation teaches to write them, in real processes: as docs/flower.md says of each."""

from __future__ import annotations

import json
from pathlib import Path

from support.flower_processes import in_processes
from support.flower_rows import APPS, MODES, ROWS, Outcome, Row, verdict

KEPT = json.loads((APPS / "results.json").read_text(encoding="utf-8"))
CHECKED = tuple(row for row in ROWS if row.checked)


def verdict_of(row: Row, outcome: Outcome, mode: str) -> str:
    return verdict(row, mode, outcome, Outcome.from_json(KEPT["flower"][row.key]))


def test_apps_do_in_processes_what_is_written_of_them(tmp_path: Path) -> None:
    """The kept outcomes of the others were made in the same way."""
    found = in_processes(CHECKED, tmp_path)
    for row in CHECKED:
        for mode in MODES:
            kept, now = Outcome.from_json(KEPT["processes"][mode][row.key]), found[mode][row.key]
            assert verdict_of(row, now, mode) == verdict_of(row, kept, mode), f"{row.title}, {mode}: {now}"
            assert now.error == kept.error
