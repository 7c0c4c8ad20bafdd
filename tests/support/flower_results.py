"""Run the rows of docs/flower.md in Flower's own simulation, and keep the results in tests/flower_apps/results.json.

python -P tests/support/flower_results.py [--threads] [PART OF A KEY ...]

With parts of keys only the rows that have one of them are run, and the others are kept as they are. A row takes a
quarter of a minute, which Ray needs to start; `--threads` does without Ray, and a client that is late then keeps no
other from answering.
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
from support.flower_threads import use_threads

KEPT = APPS / "results.json"


def in_flower(row: Row, *, ray: bool = True) -> Outcome:
    """The app under Flower's own simulation."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            app = row.app()
            run_app(app, NODES, dict(app.run_config), ray=ray)
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}")
    found = last_result(printed.getvalue())
    return Outcome(found=found) if found is not None else Outcome(error="ended without a result")


def main() -> None:
    """Run and keep."""
    parts = [one for one in sys.argv[1:] if one != "--threads"]
    ray = len(parts) == len(sys.argv[1:])
    if not ray:
        use_threads(NODES)
    sys.path.insert(0, str(APPS))
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    for row in ROWS:
        if not parts or any(part in row.key for part in parts):
            kept["flower"][row.key] = in_flower(row, ray=ray).to_json()
            KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
