"""The rows of docs/flower.md in real processes: one federation, on which one app runs after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from support.deployment import Deployment
from support.flower_rows import APPS, NODES, Outcome, Row, last_result


def in_processes(rows: Iterable[Row], folder: Path, aggregation: str) -> dict[str, Outcome]:
    """What becomes of each row, by its key."""
    with Deployment.open(folder, clients=NODES, allow_plain=True) as federation:
        federation.app = APPS
        federation.start()
        return {row.key: _run(federation, row, aggregation) for row in rows}


def _run(federation: Deployment, row: Row, aggregation: str) -> Outcome:
    done = federation.submit(settings={"aggregation": aggregation, "min-clients": NODES}, **row.config).finish()
    printed = "\n".join(event["line"] for event in done.of("log"))
    found = last_result(printed)
    if done.status == 0 and found is not None:
        return Outcome(found=found)
    said = re.findall(r"^(?:fedcore: )?(?:error: )?(.*\S)$", done.stderr, re.MULTILINE)
    return Outcome(error=said[-1] if said else f"exit status {done.status}", refused=done.status > 1)
