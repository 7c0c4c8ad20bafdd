"""Workers that pull the model from a parameter server and push gradients to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedcore.compare.modes.base import Mode, Option
from fedcore.compare.modes.baseline import GLOBAL_BATCH
from fedcore.compare.parameter_server import run_parameter_server
from fedcore.compare.results import RunResult
from fedcore.compare.run import ModeRun
from fedcore.events import EventSink


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Mode):
    """together: one step is made for all workers at once. bounded: a worker may be at most s steps ahead."""

    together: bool = False
    bounded: bool = False

    @property
    def options(self) -> Mapping[str, Option]:
        batch = GLOBAL_BATCH if self.together else {}
        bound = {"s": Option(3.0)} if self.bounded else {}
        return {**batch, "shards": Option(1, least=1), **bound}

    def bound(self, run: ModeRun) -> float:
        """By how many steps a worker that reads may be ahead of the slowest one."""
        return 0.0 if self.together else float(run.mode.options.get("s", math.inf))

    def carry_out(self, run: ModeRun, emit: EventSink, warm: Any) -> RunResult:
        return run_parameter_server(run, emit)
