"""The reference of `import fedcore`: each public name, by autodoc."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

import fedcore

_ENTRY: Final = re.compile(r"^[a-z][\w, ]*: ")


def render() -> str:
    """A section for each of `fedcore.__all__`."""
    return "\n".join(_section(name) for name in fedcore.__all__ if name != "__version__")


def _section(name: str) -> str:
    found = getattr(fedcore, name)
    if inspect.ismodule(found):  # a package that can be called
        found = found.__wrapped__
    kind = "exception" if inspect.isclass(found) and issubclass(found, BaseException) else None
    kind = kind or ("class" if inspect.isclass(found) else "function")
    where = f"{found.__module__}.{found.__qualname__}"
    return f"## {name}\n\n`from fedcore import {name}`\n\n```{{eval-rst}}\n.. auto{kind}:: {where}\n```\n"


def as_rst(_: Any, __: str, ___: str, ____: Any, _____: Any, lines: list[str]) -> None:
    """Our docstrings as reStructuredText: each `name: text` a paragraph, what is indented behind a gap code."""
    out: list[str] = []
    code = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not code and out and not out[-1]:
            out += ["::", ""]
            code = True
        code = code and (indented or not line)
        if _ENTRY.match(line) and out and out[-1]:
            out.append("")
        out.append(line.strip() if indented and not code else line)
    lines[:] = [line.replace("*", "\\*").replace("|", "\\|") for line in out]
