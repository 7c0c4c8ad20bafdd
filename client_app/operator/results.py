"""What a run left, fetched to where its operator wants it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedcore.errors import PeerError, StorageFull
from fedcore.monitoring.output_paths import Home
from fedcore.wire.operator import RESULTS_FILE, RunFilesOut

Fetch = Callable[[str, str, Path], None]
"""The path of a file of the run, its SHA-256, where it goes."""


def fetch_results(listed: RunFilesOut, home: Home, fetch: Fetch) -> dict[str, Any]:
    """Fetch the files of a run; what the summary says of them. Raises FedcoreError."""
    results: Any = {}
    for file in listed.files:
        place = home.place_of(file.path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFull(f"cannot make {place.parent}: {error.strerror}") from error
        fetch(file.path, file.sha256, place)
        if file.path == RESULTS_FILE:
            results = _read(place)
    own = sum(file.path != RESULTS_FILE for file in listed.files)
    return {
        "results": results,
        "results_file": str(home.results) if results else None,
        "files": str(home.files) if own else None,
    }


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise PeerError(f"{path} holds no results in JSON form") from None
