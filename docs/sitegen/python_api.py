"""The reference of `import fedcore`, by autodoc."""

from __future__ import annotations

import re
from typing import Any, Final

PLACE: Final = "```{eval-rst}\n.. automodule:: fedcore\n```\n"
"""All of `fedcore.__all__`."""
_ENTRY: Final = re.compile(r"^[a-z][\w, ]*: ")


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
