"""Importing the objects that an app's pyproject.toml refers to: from here on, the user's code runs."""

from __future__ import annotations

import importlib
import sys
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
