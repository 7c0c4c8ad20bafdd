"""All trackers of one run behind one EventSink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from fedcore.monitoring.trackers.base import TrackedRun, Tracker
from fedcore.monitoring.trackers.figures import Figures
from fedcore.monitoring.trackers.track import Track
from fedcore.wire.events import RunEnded, RunEvent
from fedcore.wire.operator import RunStatus


def parse_tracks(texts: Sequence[str] | None) -> tuple[Track, ...]:
    """What --track was given; raises ConfigurationError as `Track.parse`."""
    return tuple(Track.parse(text) for text in texts or ())


@dataclass(slots=True)
class Tracking:
    """An EventSink that tells trackers; a context manager, whose end is theirs.

    warn: gets a line when a tracker fails, which is told nothing more then.
    """

    warn: Callable[[str], None]
    _open: dict[Track, Tracker] = field(default_factory=dict, init=False)
    _figures: Figures = field(default_factory=Figures, init=False)
    _succeeded: bool = field(default=False, init=False)

    @classmethod
    def begin(cls, tracks: Sequence[Track], run: TrackedRun, warn: Callable[[str], None]) -> Self:
        """Open all trackers; one that cannot be opened is warned of."""
        tracking = cls(warn)
        for track in tracks:
            try:
                tracking._open[track] = track.open(run)
            except Exception as error:
                tracking._report_loss(track, error)
        return tracking

    def __call__(self, event: RunEvent) -> None:
        """Take one event of the run."""
        if isinstance(event, RunEnded):
            self._succeeded = event.status is RunStatus.FINISHED
        if (point := self._figures.of(event)) is not None:
            step, values = point
            self._each(lambda tracker: tracker.log(step, values))

    def keep(self, file: Path, kind: str = "model") -> None:
        """A file that the run left."""
        if file.is_file():
            self._each(lambda tracker: tracker.keep(file, kind))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._each(lambda tracker: tracker.close(succeeded=self._succeeded))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for track, tracker in list(self._open.items()):
            try:
                tell(tracker)
            except Exception as error:
                del self._open[track]
                self._report_loss(track, error)

    def _report_loss(self, track: Track, error: Exception) -> None:
        first = str(error).strip().partition("\n")[0]
        self.warn(f"{track} failed and is told nothing more, the run goes on: {type(error).__name__}: {first}")
