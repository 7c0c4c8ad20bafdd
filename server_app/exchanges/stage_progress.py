"""How far a stage is, as events of the run's record."""

from __future__ import annotations

from typing import Final

from fedcore.wire.events import StageProgress
from server_app.exchanges.context import ExchangeContext

_PAUSE_SECONDS: Final = 0.5


class StageReporter:
    """Shows how far a stage is, at most twice a second and once at its end.

    opened: when the exchange began, on the clock of `context`.
    """

    def __init__(self, context: ExchangeContext, stage: str, opened: float) -> None:
        self._context = context
        self._stage = stage
        self._opened = opened
        self._shown_at = context.services.clock()
        self._shown = 0
        self._lost_at: float | None = None

    def show(self, done: frozenset[int], missing: frozenset[int], *, final: bool = False) -> None:
        """Add an event, unless the last one is too recent or said the same."""
        now = self._context.services.clock()
        if not final and (len(done) == self._shown or now - self._shown_at < _PAUSE_SECONDS):
            return
        self._shown, self._shown_at = len(done), now
        self._context.event_log.add(
            StageProgress(
                exchange=self._context.task.exchange,
                stage=self._stage,
                done=len(done),
                expected=len(done | missing),
                seconds=round(now - self._opened, 3),
            )
        )

    def seconds_lost(self) -> float:
        """Since this was first asked: how long the exchange has been beyond hope."""
        now = self._context.services.clock()
        self._lost_at = self._lost_at if self._lost_at is not None else now
        return now - self._lost_at
