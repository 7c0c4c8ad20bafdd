"""What a tracker is, and what it gets to know of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What is known of a run before its figures."""

    name: str
    """Unique among the runs of one folder."""
    app: str
    app_sha256: str = ""
    run: str = ""
    """Its id, "" for none."""
    run_config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    def parameters(self) -> dict[str, Any]:
        """Run config and settings, by names that tell them apart; lists as text."""
        both = {**_named("config", self.run_config), **_named("settings", self.settings)}
        return {key: str(value) if isinstance(value, list | tuple | dict) else value for key, value in both.items()}

    def all_tags(self) -> dict[str, str]:
        """What the run is found by."""
        known = {"app": self.app, "app_sha256": self.app_sha256, "run": self.run, **self.tags}
        return {key: value for key, value in known.items() if value}


class Tracker(Protocol):
    """One run in one tracker; what it raises ends its part alone.

    Its class is called with `where` and the `TrackedRun`: `--track KIND:WHERE` with an address in WHERE gives the
    address, and otherwise an absolute folder, which may have to be made.
    """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of one round."""

    def keep(self, file: Path, kind: str) -> None:
        """A file of the run, such as its "model", if the tracker keeps files."""

    def close(self, *, succeeded: bool) -> None:
        """The run is over."""


def _named(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{key}": value for key, value in values.items()}
