"""Parser of tasks that refuses one with too many tensors before it parses their layout, which takes time."""

from __future__ import annotations

from typing import Any, Final

import pydantic
from pydantic_core import from_json

from client_app.output import clean
from client_app.records.ledger import ExchangeId
from fedcore.errors import ProtocolViolation
from fedcore.federation.admission.checks import TOO_MANY_TENSORS
from fedcore.wire.base import Name
from fedcore.wire.forms import our_version
from fedcore.wire.tasks import Task

UNREADABLE_TASK: Final = "unreadable-task"
"""The check of a withdrawal from a task that this client does not understand."""

MAX_TASK_BYTES: Final = 8 << 20
"""Largest task: 40,000 tensors with long names."""
_SMALL_BYTES: Final = 1 << 16
"""Up to here a task is parsed at once; its check counts the tensors."""


class TooManyTensors(ProtocolViolation):
    """A task whose encoding was not parsed; `task` has the rest."""

    def __init__(self, task: Task, count: int, most: int) -> None:
        super().__init__(
            TOO_MANY_TENSORS, f"the model has {count} tensors, the policy allows {most}", asked=count, allowed=most
        )
        self.task = task


class UnreadableTask(ProtocolViolation):
    """A task that this version of fedcore does not understand; `exchange_id` is what can be read of it."""

    def __init__(self, exchange_id: ExchangeId, fields: str) -> None:
        super().__init__(
            UNREADABLE_TASK,
            f"the task of exchange {exchange_id[1]} ({fields}) is in a form that fedcore {our_version()} does not "
            "understand; the server may be of another version",
        )
        self.exchange_id = exchange_id


def read_task(body: bytes, *, max_tensors: int) -> Task:
    """Parse a task; raises TooManyTensors, UnreadableTask, or ValueError if the text names no exchange."""
    if len(body) > _SMALL_BYTES:
        document = from_json(body)
        if (count := _tensors(document)) > max_tensors:
            raise TooManyTensors(Task.model_validate({**document, "encoding": None}), count, max_tensors)
    try:
        return Task.model_validate_json(body)
    except pydantic.ValidationError as error:
        try:
            named = _ExchangeReference.model_validate_json(body)
        except pydantic.ValidationError:
            raise error from None
        fields = ", ".join(sorted({clean(str(item["loc"][0])) for item in error.errors() if item["loc"]}))
        raise UnreadableTask((named.run, named.exchange), fields) from None


class _ExchangeReference(pydantic.BaseModel):
    """The fields that a task of every version has."""

    run: Name
    exchange: int = pydantic.Field(ge=1)


def _tensors(document: Any) -> int:
    encoding = document.get("encoding") if isinstance(document, dict) else None
    layout = encoding.get("layout") if isinstance(encoding, dict) else None
    return len(layout) if isinstance(layout, list) else 0
