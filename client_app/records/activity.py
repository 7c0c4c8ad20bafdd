"""The agent's present activity, in a small file of its state folder that each change rewrites.

It has what the agent's log says anyway, and nothing that depends on the data. The lock of the folder shows whether an
agent runs; if none does, the file has the last activity.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import pydantic

from fedcore.system.files import is_locked, write_file

ACTIVITY_FILE: Final = "now.json"
SANDBOX_FILE: Final = "sandbox.txt"
STEPS_FILE: Final = "steps.json"
STEPS_SECONDS: Final = 5.0
"""Between two writes of it."""

Doing = Literal["starting", "waiting", "training", "taking part", "away", "not eligible", "stopped"]
"""`training`: in the background. `away`: the server does not answer, or this client refuses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """An agent's activity; the fields of an exchange are "" and 0 while it takes part in none."""

    doing: Doing
    since: float
    """Seconds since 1970."""
    why: str = ""
    """The reason, in words, of `away` and `not eligible`, and of `stopped` if nobody stopped the agent."""
    server: str = ""
    run: str = ""
    """That of the exchange, or of the background training."""
    exchange: int = 0
    server_round: int = 0
    message_type: str = ""


_ACTIVITY: Final = pydantic.TypeAdapter(Activity)


@dataclass(slots=True)
class ActivityFile:
    """The agent's side of the file. A full disk is no error here, since only the ledger has to be durable."""

    folder: Path
    wall: Callable[[], float] = field(default=time.time, kw_only=True)

    def note(self, doing: Doing, **facts: str | int) -> None:
        """Write down a new activity; `facts` are fields of `Activity`."""
        now = Activity(doing=doing, since=round(self.wall(), 3), **facts)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            write_file(self.folder / ACTIVITY_FILE, _ACTIVITY.dump_json(now), mode=0o600)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsDone:
    """How far local work was: the steps, when the last one began and when the ranks said so (seconds since 1970)."""

    steps: int
    last_step: float
    at: float


_STEPS: Final = pydantic.TypeAdapter(StepsDone)


@dataclass(slots=True)
class StepsFile:
    """How far the ranks are, for the owner of the machine alone: the number of steps depends on the data."""

    folder: Path
    wall: Callable[[], float] = field(default=time.time, kw_only=True)
    _at: float = field(default=0.0, init=False)

    def note(self, steps: int, still: float) -> None:
        """Write down the steps, every few seconds; the last one began `still` seconds ago."""
        now = self.wall()
        if 0.0 <= now - self._at < STEPS_SECONDS:
            return
        self._at = now
        done = StepsDone(steps=steps, last_step=round(now - still, 3), at=round(now, 3))
        with contextlib.suppress(OSError):
            write_file(self.folder / STEPS_FILE, _STEPS.dump_json(done), mode=0o600)


def read_steps(folder: Path, now: Activity | None) -> StepsDone | None:
    """How far the work of an activity is; None if it is no work, or nothing is known of it."""
    if now is None or now.doing not in ("training", "taking part"):
        return None
    try:
        done = _STEPS.validate_json((folder / STEPS_FILE).read_bytes())
    except (OSError, pydantic.ValidationError):
        return None
    return done if done.at >= now.since else None


def note_sandbox(folder: Path, text: str) -> None:
    """Write down what holds for user code, as the agent's log says it at its start."""
    with contextlib.suppress(OSError):
        write_file(folder / SANDBOX_FILE, text, mode=0o600)


def read_sandbox(folder: Path) -> str:
    """What held at the agent's last start; "" if the file cannot be read."""
    try:
        return (folder / SANDBOX_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def read_activity(folder: Path) -> Activity | None:
    """The present or last activity of a state folder's agent; None if the file cannot be read."""
    try:
        return _ACTIVITY.validate_json((folder / ACTIVITY_FILE).read_bytes())
    except (OSError, pydantic.ValidationError):
        return None


def is_running(folder: Path) -> bool:
    """Whether an agent runs with a state folder."""
    try:
        return is_locked(folder)
    except OSError:
        return False
