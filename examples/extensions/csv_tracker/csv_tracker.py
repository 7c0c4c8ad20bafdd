"""Figures of a run as lines of a CSV file: round, name, value."""

import csv
from collections.abc import Mapping
from pathlib import Path

from fedcore.monitoring.trackers import TrackedRun


class CsvTracker:
    """One file for each run, named after it."""

    def __init__(self, where: str, run: TrackedRun) -> None:
        Path(where).mkdir(parents=True, exist_ok=True)
        self._file = (Path(where) / f"{run.name}.csv").open("w", newline="")
        self._rows = csv.writer(self._file)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._rows.writerows((step, name, value) for name, value in values.items())
        self._file.flush()

    def keep(self, file: Path, kind: str) -> None:
        self._rows.writerow(("", kind, file.absolute()))

    def close(self, *, succeeded: bool) -> None:
        self._rows.writerow(("", "status", "finished" if succeeded else "failed"))
        self._file.close()
