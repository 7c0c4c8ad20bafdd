"""What the agent does now, in a small file of its state folder that is written anew at each change.

It holds what the agent's log says anyway, nothing that came out of the data, and is no record: whether an agent runs is
told by the lock of the folder, and without one the file only says what was last. `None` where it cannot be read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import pydantic

from fedcore.system.files import is_held, write_file

NOW_FILE: Final = "now.json"

Doing = Literal["starting", "waiting", "training", "taking part", "away", "not eligible", "stopped"]
"""`training`: for a sum that comes later. `away`: the server does not answer, or is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What an agent does. since: seconds since 1970. why: in words, of `away` and `not eligible`.

    run, exchange, server_round, message_type: of the exchange that it takes part in, else "" and 0; where it trains for
    a later sum, run is that sum's.
    """

    doing: Doing
    since: float
    why: str = ""
    server: str = ""
    run: str = ""
    exchange: int = 0
    server_round: int = 0
    message_type: str = ""


_NOW: Final = pydantic.TypeAdapter(Now)


@dataclass(slots=True)
class NowFile:
    """The agent's side of the file. A disk that takes it no more ends nothing: the ledger is what has to be kept."""

    folder: Path
    wall: Callable[[], float] = field(default=time.time, kw_only=True)

    def note(self, doing: Doing, **facts: str | int) -> None:
        """The agent does something else from now on; facts: fields of `Now`."""
        now = Now(doing=doing, since=round(self.wall(), 3), **facts)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            write_file(self.folder / NOW_FILE, _NOW.dump_json(now), mode=0o600)


def read_now(folder: Path) -> Now | None:
    """What the agent of a state folder does, or did last."""
    try:
        return _NOW.validate_json((folder / NOW_FILE).read_bytes())
    except (OSError, pydantic.ValidationError):
        return None


def is_running(folder: Path) -> bool:
    """Whether an agent holds a state folder."""
    try:
        return is_held(folder)
    except OSError:
        return False
