"""State diagrams as tables: what draws them in a browser would come from another host."""

from __future__ import annotations

import re
from typing import Final

from sitegen.tables import code, table

_FENCE: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ARROW: Final = re.compile(r"^\s*(\S+) --> (\S+)(?:\s*:\s*(.+))?$")
_MACHINE: Final = re.compile(r"^\s*state (?:\"(.+)\" as )?(\w+) ?\{?")


def as_tables(text: str) -> str:
    """The page with each diagram as rows: state, event, next state."""
    return _FENCE.sub(lambda found: _rows(found[1]), text)


def _rows(diagram: str) -> str:
    rows = []
    for line in diagram.splitlines():
        arrow = _ARROW.match(line)
        if arrow:
            source, target, event = arrow.groups()
            rows.append((_state(source), event or "", _state(target)))
    return table(("state", "event", "next state"), rows)


def _state(name: str) -> str:
    return "begin or end" if name == "[*]" else code(name)
