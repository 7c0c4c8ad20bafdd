"""Weights & Biases: a run in a folder, offline unless WANDB_MODE says other; `wandb sync FOLDER` sends it later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import wandb

from fedcore.monitoring.trackers.base import TrackedRun

_ROUND: Final = "round"


class WeightsAndBiases:
    """Figures by round, parameters, tags in the configuration, and files as artifacts.

    Of the machine and its packages, of the code and its repository nothing is recorded: what is told is what is here.
    """

    def __init__(self, where: str, run: TrackedRun) -> None:
        Path(where).mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_code=True,
            disable_git=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedcore"),
            group=run.app,
            name=run.name,
            dir=where,
            config={**run.parameters(), **run.all_tags()},
            settings=settings,
            reinit="create_new",
        )
        self._run.define_metric("*", step_metric=_ROUND)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({_ROUND: step, **values})

    def keep(self, file: Path, kind: str) -> None:
        artifact = wandb.Artifact(f"{kind}-{self._run.id}", kind)
        artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def close(self, *, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)
