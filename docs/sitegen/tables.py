"""Markdown out of names, types and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Final

_ENTRY: Final = re.compile(r"^([a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*): (.*)$")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar in a cell stays what it is."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(value: Any) -> str:
    """A value as code, nothing for an empty text."""
    return f"`{value}`" if str(value) else ""


def summary(documented: Any) -> str:
    """What a docstring says before it explains single names."""
    lines: list[str] = []
    for line in inspect.getdoc(documented).splitlines() if inspect.getdoc(documented) else []:
        if _ENTRY.match(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def explained(documented: Any) -> dict[str, str]:
    """What a docstring says of each name: lines `name: text` or `name, other: text`, and those indented below."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (inspect.getdoc(documented) or "").splitlines():
        entry = _ENTRY.match(line)
        if entry:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.startswith("    ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found


def type_name(hint: Any) -> str:
    """A type as a person reads it: alternatives by their values, classes by their bare names."""
    if hint is type(None):
        return "none"
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is typing.Annotated:
        return type_name(inner[0])
    if origin in (tuple, list) and inner:
        return f"list of {type_name(inner[0])}"
    if inner and origin in (typing.Union, getattr(__import__("types"), "UnionType")):  # noqa: B009
        return " or ".join(type_name(each) for each in inner)
    if inner:
        return f"`{getattr(origin, '__name__', origin)}` of {', '.join(type_name(each) for each in inner)}"
    return f"`{getattr(hint, '__name__', hint)}`"


def default(found: dataclasses.Field[Any]) -> Any:
    """The default of a field; an empty text if there is none."""
    if found.default is not dataclasses.MISSING:
        return found.default
    return found.default_factory() if found.default_factory is not dataclasses.MISSING else ""
