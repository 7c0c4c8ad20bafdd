"""The rows of docs/flower.md in real processes: one federation, on which one app runs after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from support.deployment import Deployment
from support.flower_rows import APPS, MODES, NODES, Outcome, Row, last_result


def in_processes(rows: Iterable[Row], folder: Path) -> dict[str, dict[str, Outcome]]:
    """What becomes of each row: of the mode, by the row's key."""
    with Deployment.open(folder, clients=NODES, allow_plain=True) as federation:
        federation.app = APPS
        federation.start()
        outcomes = {row.key: {mode: _run(federation, row, mode) for mode in MODES} for row in rows}
    return {mode: {key: outcome[mode] for key, outcome in outcomes.items()} for mode in MODES}


def _run(federation: Deployment, row: Row, mode: str) -> Outcome:
    done = federation.submit(
        settings={"aggregation": mode, "min-clients": NODES, **row.settings}, **row.config
    ).finish()
    found = last_result("\n".join(event["line"] for event in done.of("log")))
    if done.status == 0 and found is not None:
        return Outcome(found=found)
    failed = re.findall(r"run \w+ failed: (.*\S)", done.stderr)
    return Outcome(error=failed[-1] if failed else f"exit status {done.status}", refused=done.status > 1)
