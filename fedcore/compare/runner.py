"""One run of any mode, by the processes of its family."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from fedcore.compare.federation import Federation
from fedcore.compare.results import RunResult
from fedcore.compare.run import ModeRun
from fedcore.events import EventSink

FEDERATION_FOLDER = "federation"


@dataclass(slots=True)
class ModeRunner:
    """Carries out runs; the processes of a federation stay for the next run that they can serve.

    Use as a context manager: leaving it ends all processes. folder: of the whole comparison.
    """

    folder: Path
    _stack: ExitStack = field(default_factory=ExitStack)
    _federation: Federation | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, run: ModeRun, emit: EventSink) -> RunResult:
        """Carry out one run; raises FedcoreError or OSError where it cannot begin."""
        if run.mode.mode.warm_group(run):
            return run.mode.mode.carry_out(run, emit, self._warm())
        # Idle clients would take memory and time from the workers of this run.
        self._close()
        return run.mode.mode.carry_out(run, emit, None)

    def _warm(self) -> Federation:
        if self._federation is None:
            folder = self.folder / FEDERATION_FOLDER
            # What an interrupted start left there: keys and a port of its own.
            shutil.rmtree(folder, ignore_errors=True)
            self._federation = self._stack.enter_context(Federation(folder))
        return self._federation

    def _close(self) -> None:
        self._stack.close()
        self._federation = None
