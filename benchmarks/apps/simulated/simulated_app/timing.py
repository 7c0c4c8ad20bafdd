"""Seconds that each process has trained, to measure which share of a simulation that is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedcore.flower.apps import supervised_batches as supervised_together
from fedcore.training.loop import TrainingPlan


def time_training(folder: Path) -> None:
    """From here on each process writes the seconds that it has spent in local training into a file of its own."""
    spent: dict[int, float] = {}

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*arguments: Any, **named: Any) -> Any:
            started, own = time.perf_counter(), os.getpid()
            try:
                return call(*arguments, **named)
            finally:
                spent[own] = spent.get(own, 0.0) + time.perf_counter() - started
                (folder / f"{own}.seconds").write_text(str(spent[own]))

        return timing

    TrainingPlan.run = timed(TrainingPlan.run)  # type: ignore[method-assign]
    together = "train_together"  # the name by which the module calls it
    setattr(supervised_together, together, timed(getattr(supervised_together, together)))
