"""Logging of the server: lines for people, or one JSON object a line for programs.

A line of JSON says what it is about: `run` with the id of its trace, `trace_id`, `exchange`, `client`, `step` (of a
request) or `stage` (of an event), and the `request`, by an id that the answer has too. `at` and `note` put these into
whatever is logged below them, in the same task. No line has the content of a message, a signature or a token.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from fedcore.system.terminal import visible
from fedcore.system.tracing import trace_name
from fedcore.wire.base import moment

_CONTEXT: ContextVar[Mapping[str, object]] = ContextVar("log context", default=MappingProxyType({}))
_EXTRAS: Final = ("run", "event", "data")
_OF_EVENTS: Final = ("exchange", "client", "stage")


@contextlib.contextmanager
def at(**fields: object) -> Iterator[None]:
    """Say in every line of this block where it was logged."""
    token = _CONTEXT.set({**_CONTEXT.get(), **fields})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def note(**fields: object) -> None:
    """Say more in the lines that follow in the block around."""
    _CONTEXT.set({**_CONTEXT.get(), **fields})


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a run's events keep their fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, object] = {
            "time": moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= _CONTEXT.get()
        for key in _EXTRAS:
            if hasattr(record, key):
                entry[key] = getattr(record, key)
        data = entry.get("data")
        if isinstance(data, dict):
            entry |= {key: data[key] for key in _OF_EVENTS if key in data}
        if isinstance(run := entry.get("run"), str):
            entry["trace_id"] = trace_name(run)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class LineFormatter(logging.Formatter):
    """Time and message; the level only if something is wrong."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line; what an app or a peer wrote into it does nothing to a terminal."""
        text = visible(super().format(record))
        return text if record.levelno < logging.WARNING else f"{text} [{record.levelname.lower()}]"


def configure(*, as_json: bool) -> None:
    """Send everything to standard error in one form; uvicorn's own loggers are quiet."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)
