"""Text of others on a person's terminal: what an app printed, a peer answered, a server named.

A terminal does what control characters say: clears itself, moves the cursor, changes its title, or shows a line as
another one. Whatever an app or a peer wrote is printed with them as escapes; tabs and line ends stay.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Final

from rich.markup import escape as _without_markup

_SUSPECT: Final = re.compile(r"[^\t\n\x20-\x7e]")
"""What is looked at more closely: all but tabs, line ends and printable ASCII."""


def visible(text: str, *, keep: str = "\t\n") -> str:
    """`text` with what is not printable written as its escape, as in Python: \\x1b. keep: of it, what stays."""
    return _SUSPECT.sub(lambda found: _shown(found[0]), text) if keep == "\t\n" else _each(text, keep)


def visible_json(text: str) -> str:
    """The text of a JSON document, in which such characters can only be inside of strings, escaped as JSON does."""
    return _SUSPECT.sub(lambda found: found[0] if _is_plain(found[0]) else json.dumps(found[0])[1:-1], text)


def escape(text: str) -> str:
    """`visible`, and none of it is markup for rich."""
    return _without_markup(visible(text))


def _each(text: str, keep: str) -> str:
    return "".join(char if char in keep else _shown(char) for char in text)


def _shown(char: str) -> str:
    return char if _is_plain(char) else char.encode("unicode_escape").decode()


def _is_plain(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"
