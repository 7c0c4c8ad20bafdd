"""How a worker fails: the exception that it raised, as a message, and its exit status in words."""

from __future__ import annotations

import signal
import traceback
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from fedcore import errors
from fedcore.errors import FedcoreError


class WorkerMessage(BaseModel):
    """A message to or from a worker: JSON, in which bytes are base64."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
    )


class RaisedError(WorkerMessage):
    """An exception that a worker raised."""

    kind: Literal["raised"] = "raised"
    error: str
    """The name of its type in `fedcore.errors`; "" for any other."""
    text: str
    """What it says."""
    values: dict[str, Any]
    """Its attributes, if it is one of fedcore's."""
    line: str
    """The last line of its traceback, with its type."""
    trace: str

    @classmethod
    def of(cls, error: BaseException, **fields: Any) -> Self:
        """The message for an exception."""
        kind = type(error)
        ours = isinstance(error, FedcoreError) and getattr(errors, kind.__name__, None) is kind
        return cls(
            error=kind.__name__ if ours else "",
            text=str(error),
            values=to_jsonable_python(vars(error), fallback=str) if ours else {},
            line=traceback.format_exception_only(error)[-1].strip(),
            trace="".join(traceback.format_exception(error)),
            **fields,
        )

    @property
    def reason(self) -> str:
        """What it says, if it is one of fedcore's; else the last line of its traceback, which has its type."""
        return self.text if self.error else self.line

    def exception(self) -> Exception:
        """The exception as it was, or a RuntimeError for one that is not fedcore's, with its traceback as a note."""
        kind = getattr(errors, self.error, RuntimeError) if self.error else RuntimeError
        error: Exception = kind.__new__(kind)
        error.args = (self.reason,)
        vars(error).update(self.values)
        error.add_note(f"in a worker process:\n{self.trace}")
        return error


def exit_description(status: int | None) -> str:
    """How a process ended: "ended by SIGKILL", "ended with exit status 1".

    Args:
        status: as `subprocess` has it, negative for a signal; None if it is unknown.
    """
    if status is None or status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"ended by signal {-status}"


def memory_hint(status: int | None) -> str:
    """What to try after that ending, to be appended to it; "" if it says nothing about memory."""
    return "; if the machine ran out of memory, try fewer workers" if status == -signal.SIGKILL else ""
