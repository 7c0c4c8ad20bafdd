"""Events of runs for tests: made from the few values that a test is about, and taken apart again."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from fedcore.wire.events import RunEvent

_EVENT: TypeAdapter[RunEvent] = TypeAdapter(RunEvent)
_ANY: dict[str, dict[str, Any]] = {
    "clients": {"online": [], "expected": 2},
    "started": {"app": "x", "aggregation": "secure"},
    "exchange": {
        "exchange": 1, "server_round": 1, "message_type": "train", "attempt": 1, "cohort": ["a", "b"], "quorum": 2,
        "field_bits": 16, "aggregation": "secure", "model": None,
    },
    "stage": {"exchange": 1, "stage": "input", "done": 1, "expected": 2, "seconds": 0.1},
    "dropped": {"exchange": 1, "client": "b", "stage": "input", "reason": "silent"},
    "exchange-done": {
        "exchange": 1, "server_round": 1, "message_type": "train", "aggregation": "secure",
        "survivors": ["a", "b"], "examples": 10, "metrics": {}, "seconds": 0.5,
    },
    "exchange-failed": {"exchange": 1, "server_round": 1, "reason": "too few", "retry": True},
    "exchange-repeated": {"exchange": 1, "server_round": 1, "large": 1, "survivors": 2},
    "group-ended": {
        "exchange": 2, "drawn": 1, "server_round": 1, "group": 1, "groups": 2, "survivors": [], "seconds": 0.5,
    },
    "statistics": {"statistics": {"columns": {}, "clients": 3, "asked": 3}},
    "traffic": {
        "bytes_up": {"a": 10, "b": 20}, "bytes_down": {"a": 30, "b": 40}, "operators_up": 5, "operators_down": 6,
    },
    "log": {"line": "hello"},
    "warning": {"line": "take care"},
    "ended": {"status": "finished"},
}  # fmt: skip


def event(kind: str, **data: Any) -> RunEvent:
    """An event of this kind; what a test does not say is filled in."""
    return _EVENT.validate_python({"kind": kind, **_ANY[kind], **data})


def told(of: RunEvent) -> dict[str, Any]:
    """What an event says, as plain JSON without its kind."""
    return of.model_dump(mode="json", exclude={"kind"})
