"""Errors of standard output, which must not end the program that prints.

A result goes to a file, a disk that may be full, or a pipe whose reader may be gone. What is printed is written when a
buffer is full, or when Python ends; then it is too late to say anything but a traceback.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from fedcore.errors import EnvironmentFailure


class OutputLost(EnvironmentFailure):
    """What was to be printed could not be written."""


class _Checked(io.TextIOWrapper):
    """Raises OutputLost if writing fails. A pipe that nobody reads any more stays a BrokenPipeError."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        stream.flush()
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self._stream = stream  # which would close what both write to when nobody holds it any more

    def write(self, text: str, /) -> int:
        with _named():
            return super().write(text)

    def flush(self) -> None:
        with _named():
            super().flush()


@contextlib.contextmanager
def checked_output() -> Iterator[None]:
    """Within it, and at its end, what cannot be printed is one line on standard error and a status.

    A reader that has seen enough, as `head` has, is told nothing: the status alone is 1, as click has it.
    """
    if sys.stdout is None:  # closed by whoever started this program
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _Checked(sys.stdout)
    code: Any = 0
    try:
        yield
    except SystemExit as end:
        code = end.code
    except OutputLost as lost:
        code = _report_loss(lost)
    try:
        sys.stdout.flush()
    except OutputLost as lost:
        code = code or _report_loss(lost)
        _silence()
    except BrokenPipeError:
        code = code or 1
        _silence()
    sys.exit(code)


@contextlib.contextmanager
def user_output_to_stderr() -> Iterator[None]:
    """Send what an app prints to standard error, so that standard output has the result alone."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise OutputLost(f"standard output cannot be written ({why}); what was to be printed is lost") from error


def _report_loss(lost: OutputLost) -> int:
    with contextlib.suppress(OSError):
        print(f"error: {lost}", file=sys.stderr)  # noqa: T201 - the command's last word
    return lost.exit_code


def _silence() -> None:
    """What is still in the buffer goes nowhere, so that Python does not try again as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
