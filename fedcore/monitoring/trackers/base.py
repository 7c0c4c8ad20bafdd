"""What a tracker is, and how a person names one."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

from fedcore.errors import ConfigurationError

FOLDER: Final = Path("track")
"""Where trackers write that are not told where, below the current folder."""
KINDS: Final = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""Kind -> the package that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What is known of a run before its figures. name: unique among those of one folder. run: its id, "" for none."""

    name: str
    app: str
    app_sha256: str = ""
    run: str = ""
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
    """One run in one tracker; whatever it raises ends its part alone."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of one round."""

    def keep(self, file: Path, kind: str) -> None:
        """A file of the run, such as its "model", where the tracker keeps files."""

    def close(self, *, succeeded: bool) -> None:
        """The run is over."""


@dataclass(frozen=True, slots=True)
class Track:
    """KIND or KIND:WHERE, checked. where: a folder, of MLflow also an address; "" for the kind's own default."""

    kind: str
    where: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ConfigurationError for a kind that there is not, a missing package, and a folder that is no place."""
        kind, _, where = text.partition(":")
        if kind not in KINDS:
            raise ConfigurationError(f"--track: there is no tracker {kind!r}, only {', '.join(KINDS)}")
        if importlib.util.find_spec(KINDS[kind]) is None:
            raise ConfigurationError(f"--track: {kind} is not installed; pip install 'fedcore[tracking]'")
        track = cls(kind, where)
        if not track.is_address:
            _check_writable(track.folder)
        return track

    @property
    def is_address(self) -> bool:
        """Whether `where` is an address and no folder; MLflow's alone can be one."""
        return self.kind == "mlflow" and "://" in self.where

    @property
    def folder(self) -> Path:
        """Where a tracker without an address writes."""
        return (Path(self.where) if self.where else FOLDER / self.kind).absolute()

    def open(self, run: TrackedRun) -> Tracker:
        """Begin to track a run; raises whatever the tracker does."""
        switch_reports_off()
        match self.kind:
            case "tensorboard":
                from fedcore.monitoring.trackers.tensorboard import TensorBoard

                return TensorBoard(self.folder, run)
            case "mlflow":
                from fedcore.monitoring.trackers.mlflow import MLflow

                return MLflow(self.where if self.is_address else "", self.folder, run)
        from fedcore.monitoring.trackers.wandb import WeightsAndBiases

        return WeightsAndBiases(self.folder, run)

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}" if self.is_address else f"{self.kind} in {self.folder}"


def switch_reports_off() -> None:
    """Before an import: no usage or error reports to the makers of the packages, and no waiting for who is away.

    MLflow: https://mlflow.org/docs/latest/community/usage-tracking.html. Weights & Biases:
    https://docs.wandb.ai/models/track/environment-variables.
    """
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", WANDB_ERROR_REPORTING="false")
    ours = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    }
    for name, value in ours.items():
        os.environ.setdefault(name, value)


def _named(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{key}": value for key, value in values.items()}


def _check_writable(folder: Path) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--track: no folder can be made at {folder}: {there} cannot be written; name another")
