"""Run the rows of docs/flower.md in Flower's own simulation, one after the other, and keep what they report.

python -P tests/support/flower_results.py OUT.json [PART OF A TITLE ...]

With parts of titles only the rows that have one of them are run, and the others are kept as they are.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

from support.flower_rows import APPS, NODES, ROWS, Outcome, Row, last_result
from support.flower_simulation import run_app


def in_flower(row: Row) -> Outcome:
    """The app under Flower's own simulation."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            app = row.app()
            run_app(app, NODES, dict(app.run_config))
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}")
    found = last_result(printed.getvalue())
    return Outcome(found=found) if found is not None else Outcome(error="ended without a result")


def main() -> None:
    """Run and keep."""
    out, parts = Path(sys.argv[1]), sys.argv[2:]
    sys.path.insert(0, str(APPS))
    kept = json.loads(out.read_text()) if out.exists() else {}
    for row in ROWS:
        if not parts or any(part in row.key for part in parts):
            kept[row.key] = in_flower(row).to_json()
            sys.stderr.write(f"=== {row.key}: {str(kept[row.key])[:100]}\n")
            out.write_text(json.dumps({key: kept[key] for key in sorted(kept)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
