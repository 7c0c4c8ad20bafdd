"""Importing the objects that an app's pyproject.toml refers to: from here on, the user's code runs."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from fedcore.errors import AppError

T = TypeVar("T")


def load_object(folder: Path, reference: str, kind: type[T]) -> T:
    """Import `module:attribute` from `folder`; raises AppError if it is not a `kind`.

    An error inside the app's own modules is raised as it is, so that its traceback points to the app's line.
    """
    module_name, _, attribute = reference.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):  # not another whose name begins alike
            raise AppError(f"the app in {folder} has no module {module_name!r} (for {reference!r})") from None
        raise
    target = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise AppError(f"module {module_name!r} of the app in {folder} has no attribute {attribute!r}")
        target = getattr(target, part)
    if not isinstance(target, kind):
        raise AppError(f"{reference!r} is a {type(target).__name__}, not a {kind.__name__}")
    return target


_NOT_OF_NUMPY = re.compile(r"unsupported ScalarType (\w+)")
"""How torch says that a tensor has no array of NumPy's."""


@contextlib.contextmanager
def naming_dtypes(folder: Path) -> Iterator[None]:
    """Around an app's own code: say the rule if it puts a tensor into a record that no record of Flower can hold.

    `ArrayRecord(model.state_dict())` goes through NumPy, which has no bfloat16. Raises AppError for that; all other
    errors of the app stay as they are.

    Args:
        folder: the app's.
    """
    try:
        yield
    except TypeError as error:
        dtype = _NOT_OF_NUMPY.search(str(error))
        if dtype is None:
            raise
        raise AppError(
            f"{_line_in(folder, error)}a tensor of {dtype[1].lower()}, which NumPy does not have, and so no record of "
            "Flower: put {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in "
            "model.state_dict().items()} into the ArrayRecord, on the server and on the clients; load_state_dict casts "
            "back",
            check="dtype-of-record",
        ) from None


def _line_in(folder: Path, error: BaseException) -> str:
    """The app's last line that led to an error; empty if none did."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(folder):
            return f"{path.relative_to(folder)}:{frame.lineno}: "
    return ""
