"""A task as it comes from the server, read so that none is dear to refuse: a layout costs time for each tensor."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import from_json

from fedcore.admission.tasks import TOO_MANY_TENSORS
from fedcore.errors import ProtocolViolation
from fedcore.wire import Task

MAX_TASK_BYTES: Final = 8 << 20
"""Largest task: 40,000 tensors with long names."""
_SMALL_BYTES: Final = 1 << 16
"""Up to here a task is read at once; whoever checks it counts its tensors."""


class TooManyTensors(ProtocolViolation):
    """A task whose encoding was not read; `task` is the rest of it."""

    def __init__(self, task: Task, count: int, most: int) -> None:
        super().__init__(
            TOO_MANY_TENSORS, f"the model has {count} tensors, the policy allows {most}", asked=count, allowed=most
        )
        self.task = task


def read_task(body: bytes, *, max_tensors: int) -> Task:
    """The task in a JSON text; raises TooManyTensors, or ValueError for what is no task."""
    if len(body) > _SMALL_BYTES:
        document = from_json(body)
        if (count := _tensors(document)) > max_tensors:
            raise TooManyTensors(Task.model_validate({**document, "encoding": None}), count, max_tensors)
    return Task.model_validate_json(body)


def _tensors(document: Any) -> int:
    encoding = document.get("encoding") if isinstance(document, dict) else None
    layout = encoding.get("layout") if isinstance(encoding, dict) else None
    return len(layout) if isinstance(layout, list) else 0
