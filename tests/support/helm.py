"""The part of Helm's template language that our chart keeps to, for where there is no Helm.

Values, `.Release.Name`, `quote`, `if`, `if ne`, and `range $i := until (int N)`; anything else fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TOKEN = re.compile(r"\n?[ \t]*\{\{-(.+?)\}\}|\{\{([^-].+?)\}\}")


def render(template: str, values: Mapping[str, Any], *, release: str = "pilot") -> str:
    """The text that `helm template` would make of `template`."""
    scope = {"Release": {"Name": release}, "Values": values}
    text, rest = _block(template, scope, {})
    assert not rest, f"an end too many before {rest[:60]!r}"
    return text


def _block(template: str, scope: Mapping[str, Any], local: Mapping[str, Any]) -> tuple[str, str]:
    """What a block renders to, and what follows its `end`."""
    made = ""
    while (found := _TOKEN.search(template)) is not None:
        made, word = made + template[: found.start()], (found[1] or found[2]).strip()
        template = template[found.end() :]
        if word == "end":
            return made, template or " "
        if word.startswith("if "):
            inner, following = _block(template, scope, local)
            made, template = made + (inner if _holds(word[3:], scope, local) else ""), following
        elif word.startswith("range "):
            name, number = re.fullmatch(r"range (\$\w+) := until \(int (\S+)\)", word).groups()
            for index in range(int(_value(number, scope, local))):
                inner, following = _block(template, scope, {**local, name: index})
                made += inner
            template = following
        else:
            made += str(_value(word, scope, local))
    return made + template, ""


def _holds(word: str, scope: Mapping[str, Any], local: Mapping[str, Any]) -> bool:
    if word.startswith("ne "):
        _, name, text = word.split()
        return bool(_value(name, scope, local) != text.strip('"'))
    return bool(_value(word, scope, local))


def _value(word: str, scope: Mapping[str, Any], local: Mapping[str, Any]) -> Any:
    name, _, pipe = (part.strip() for part in word.partition("|"))
    if name in local:
        return local[name]
    value: Any = scope
    for key in name.removeprefix("$").removeprefix(".").split("."):
        value = value[key]
    assert pipe in ("", "quote"), word
    return f'"{value}"' if pipe else value
