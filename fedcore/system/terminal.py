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

_LAYOUT: Final = "\t\n"
_SUSPECT: Final = re.compile(r"[^\x20-\x7e]")
"""What is looked at more closely: all but printable ASCII."""


def visible(text: str, *, keep: str = _LAYOUT) -> str:
    """`text` with what is not printable written as its escape, as in Python: \\x1b.

    Args:
        keep: of it, what stays.
    """
    return _SUSPECT.sub(lambda match: match[0] if match[0] in keep else _escaped(match[0]), text)


def visible_json(text: str) -> str:
    """The text of a JSON document, in which such characters can only be inside of strings, escaped as JSON does."""
    return _SUSPECT.sub(
        lambda match: match[0] if match[0] in _LAYOUT or _is_plain(match[0]) else json.dumps(match[0])[1:-1], text
    )


def escape(text: str) -> str:
    """`visible`, and none of it is markup for rich."""
    return _without_markup(visible(text))


def _escaped(char: str) -> str:
    return char if _is_plain(char) else char.encode("unicode_escape").decode()


def _is_plain(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"
