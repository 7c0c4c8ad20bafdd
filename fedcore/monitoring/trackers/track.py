"""`--track KIND[:WHERE]`: the kinds of trackers, and the place that a person names for one."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from fedcore.errors import ConfigurationError
from fedcore.monitoring.trackers.base import TrackedRun, Tracker
from fedcore.system.plugins import Registry, with_methods

FOLDER: Final = Path("track")
"""Where trackers write by default, below the current folder."""
_OWN: Final = {"mlflow": "mlflow:MLflow", "tensorboard": "tensorboard:TensorBoard", "wandb": "wandb:WeightsAndBiases"}
"""Kind -> its module, which has the name of the package that it needs, and its class."""
_FOLDERS_ONLY: Final = ("tensorboard", "wandb")


TRACKERS: Final[Registry[Any]] = Registry(
    "tracker",
    "fedcore.trackers",
    {name: f"fedcore.monitoring.trackers.{module}" for name, module in _OWN.items()},
    where="--track",
    accept=with_methods("log", "keep", "close"),
)


@dataclass(frozen=True, slots=True)
class Track:
    """KIND or KIND:WHERE, checked."""

    kind: str
    where: str = ""
    """A folder or, for a kind that takes one, an address; "" for the folder of the kind."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text.

        Raises UnknownName for an unknown kind, ConfigurationError for a broken one, a missing package, or a folder that
        cannot be written.
        """
        kind, _, where = text.partition(":")
        TRACKERS.check(kind)
        if kind not in _OWN:
            TRACKERS[kind]  # a broken one shows before the run
        elif importlib.util.find_spec(kind) is None:
            raise ConfigurationError(f"--track: {kind} is not installed; pip install 'fedcore[tracking]'")
        track = cls(kind, where)
        if not track.is_address:
            _check_writable(track.folder)
        return track

    @property
    def is_address(self) -> bool:
        """Whether `where` is an address and no folder."""
        return "://" in self.where and self.kind not in _FOLDERS_ONLY

    @property
    def folder(self) -> Path:
        """The folder that a tracker without an address writes to."""
        return (Path(self.where) if self.where else FOLDER / self.kind).absolute()

    def open(self, run: TrackedRun) -> Tracker:
        """Begin to track a run; raises what the tracker does."""
        switch_reports_off()
        tracker: Tracker = TRACKERS[self.kind](self.where if self.is_address else str(self.folder), run)
        return tracker

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


def _check_writable(folder: Path) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--track: no folder can be made at {folder}: {there} cannot be written; name another")
