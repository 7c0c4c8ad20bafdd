"""MLflow: a run of the experiment that is named after the app, in a SQLite file of a folder or at an address."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from fedcore.monitoring.trackers.base import TrackedRun

_AT_ONCE = 100
"""Parameters and tags that MLflow takes in one call."""
_MOST_CHARACTERS = 6000
"""Of a parameter's value."""


class MLflow:
    """Metrics by round, parameters, tags, and files as artifacts."""

    def __init__(self, where: str, run: TrackedRun) -> None:
        folder = None if "://" in where else Path(where)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(where if folder is None else f"sqlite:///{folder / 'mlflow.db'}")
        experiment = self._client.get_experiment_by_name(run.app)
        if experiment is not None:
            number = experiment.experiment_id
        else:
            artifacts = None if folder is None else (folder / "artifacts").as_uri()
            number = self._client.create_experiment(run.app, artifact_location=artifacts)
        self._run = self._client.create_run(number, run_name=run.name, tags=run.all_tags()).info.run_id
        params = [Param(key, str(value)[:_MOST_CHARACTERS]) for key, value in run.parameters().items()]
        for start in range(0, len(params), _AT_ONCE):
            self._client.log_batch(self._run, params=params[start : start + _AT_ONCE])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def keep(self, file: Path, kind: str) -> None:
        self._client.log_artifact(self._run, str(file), kind)

    def close(self, *, succeeded: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if succeeded else "FAILED")
