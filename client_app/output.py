"""The agent's log: lines of text for a person, or JSON objects for a program."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

from fedcore.system.standard_output import OutputLost
from fedcore.system.tracing import trace_name
from fedcore.wire.base import moment

Level = Literal["info", "warning", "error"]
_MAX_TEXT = 2000


def clean(text: str) -> str:
    """`text` on one line without control characters, so that no peer can steer the owner's terminal."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 1] + "…"


@dataclass(slots=True, kw_only=True)
class Output:
    """Writes the agent's log."""

    name: str
    as_json: bool = False
    """One JSON object a line instead of text."""
    stream: TextIO = field(default_factory=lambda: sys.stdout)
    clock: Callable[[], float] = time.time
    """Seconds since the epoch."""
    context: dict[str, Any] = field(default_factory=dict)
    """What every line carries while an exchange is open."""

    def info(self, stage: str, text: str, **fields: Any) -> None:
        """Progress."""
        self._write("info", stage, text, fields)

    def warning(self, stage: str, text: str, **fields: Any) -> None:
        """Something went wrong, and the agent goes on."""
        self._write("warning", stage, text, fields)

    def error(self, stage: str, text: str, **fields: Any) -> None:
        """Something that the owner should look at."""
        self._write("error", stage, text, fields)

    def _write(self, level: Level, stage: str, text: str, fields: dict[str, Any]) -> None:
        now = self.clock()
        if self.as_json:
            entry = {"time": moment(now), "level": level, "client": self.name, **self.context}
            run = entry.get("run")
            trace = {"trace_id": trace_name(run)} if isinstance(run, str) else {}
            line = json.dumps({**entry, **trace, "stage": stage, "text": clean(text), **fields}, default=str)
        else:
            line = self._human(now, level, stage, text, fields)
        with contextlib.suppress(OSError, OutputLost):  # of a terminal that was closed, say: that is no end of the work
            print(line, file=self.stream, flush=True)

    def _human(self, now: float, level: Level, stage: str, text: str, fields: dict[str, Any]) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(now))
        position = ""
        if self.context:
            planned = f" of {self.context['rounds']}" if self.context.get("rounds") else ""
            position = f"round {self.context['round']}{planned} (exchange {self.context['exchange']})  "
        plain = "  [plain: the server can read this]" if self.context.get("aggregation") == "plain" else ""
        seconds = f"  {fields['seconds']:.2f} s" if "seconds" in fields else ""
        mark = "" if level == "info" else f"{level}: "
        return f"{when} {self.name}  {position}{stage:<12} {mark}{clean(text)}{seconds}{plain}"
