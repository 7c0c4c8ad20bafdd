"""TensorBoard: event files in a folder of the run; `tensorboard --logdir FOLDER` shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from fedcore.monitoring.trackers.base import TrackedRun


class TensorBoard:
    """Scalars by round; parameters and tags as texts. It keeps no files."""

    def __init__(self, where: str, run: TrackedRun) -> None:
        self._writer = SummaryWriter(str(Path(where) / run.name))
        for name, values in (("parameters", run.parameters()), ("tags", run.all_tags())):
            rows = "".join(f"| {key} | {json.dumps(value)} |\n" for key, value in values.items())
            self._writer.add_text(name, f"| name | value |\n| --- | --- |\n{rows}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def keep(self, file: Path, kind: str) -> None:
        self._writer.add_text(kind, str(file.absolute()))

    def close(self, *, succeeded: bool) -> None:
        self._writer.add_text("status", "finished" if succeeded else "failed")
        self._writer.close()
