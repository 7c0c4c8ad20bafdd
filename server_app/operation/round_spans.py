"""Spans of a run's exchanges and their stages, made of its events."""

from __future__ import annotations

import time

from fedcore.system.tracing import EXCHANGE, Traces
from fedcore.wire.events import (
    ExchangeDone,
    ExchangeFailed,
    ExchangeRepeated,
    ExchangeStarted,
    RunEvent,
    StageProgress,
)


class RoundSpans:
    """Follows the events of one run.

    A stage lasts from the end of the one before to the last event that shows it.
    """

    def __init__(self, traces: Traces, run: str) -> None:
        self._traces = traces
        self._run = run
        self._exchange = 0
        self._stage = ""
        self._began = self._stage_began = self._last = 0.0

    def observe(self, event: RunEvent) -> None:
        """An event of the run."""
        match event:
            case ExchangeStarted(exchange=exchange):
                self._begin(exchange)
            case StageProgress(exchange=exchange, stage=stage):
                if exchange != self._exchange:  # taken up again after a restart
                    self._begin(exchange)
                if stage != self._stage:
                    self._end_stage()
                    self._stage = stage
                self._last = time.monotonic()
            case (
                ExchangeDone(exchange=exchange)
                | ExchangeFailed(exchange=exchange)
                | ExchangeRepeated(exchange=exchange)
            ):
                if exchange == self._exchange:
                    self._end_stage()
                    self._record(EXCHANGE, self._began, time.monotonic())
                    self._exchange = 0
            case _:
                pass

    def _begin(self, exchange: int) -> None:
        self._exchange, self._stage = exchange, ""
        self._began = self._stage_began = self._last = time.monotonic()

    def _end_stage(self) -> None:
        if self._stage:
            self._record(self._stage, self._stage_began, self._last)
            self._stage_began, self._stage = self._last, ""

    def _record(self, name: str, began: float, ended: float) -> None:
        self._traces.record(name, self._run, self._exchange, began=began, ended=ended)
