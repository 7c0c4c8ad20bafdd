"""Settings as people write them: `key=value` with kebab-case keys, checked against defaults or against a dataclass.

An unknown key is an error that names the nearest one.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from fedcore.errors import ConfigurationError, UnknownKey

_TYPE_NAMES: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a table",
}
# A key, and a value in which spaces stand only within quotes or brackets.
_ASSIGNMENT = re.compile(r"""("[^"]+"|[^\s="]+)\s*=\s*((?:"(?:[^"\\]|\\.)*"|'[^']*'|\[[^\]]*\]|[^\s"'\[])*)(?=\s|$)""")


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Read texts of one or several `key=value` with TOML values, as in `lr=0.1 name="a b"`; a bare word is a string.

    A text without "=" that ends in .toml is the path of a file of them, whose tables give keys with dots, as Flower
    reads one. Of a key that comes twice the last value counts.

    Raises ConfigurationError for a text that holds anything else, or nothing, and for a file that cannot be read.
    """
    values: dict[str, Any] = {}
    for text in assignments:
        if text.endswith(".toml") and "=" not in text:
            values.update(flat(_read_table(Path(text).expanduser())))
            continue
        for key, raw in split_assignments(text):
            try:
                values[key] = tomllib.loads(f"value = {raw}")["value"]
            except tomllib.TOMLDecodeError:
                values[key] = raw
    return values


def _read_table(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}", check="file") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigurationError(f"{path} is no TOML file: {error}", check="file") from None


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a TOML table; keys of tables within it are joined by dots, as Flower names nested run config."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def split_assignments(text: str) -> list[tuple[str, str]]:
    """The pairs of `a=1 b="x y"`, values as they are written; raises ConfigurationError."""
    pairs: list[tuple[str, str]] = []
    rest = text.strip()
    while rest or not pairs:
        match = _ASSIGNMENT.match(rest)
        if match is None:
            unbalanced = rest.count('"') % 2 or rest.count("'") % 2
            raise ConfigurationError(
                f"unbalanced quotes in {rest!r}" if unbalanced else f"expected key=value, not {rest!r}",
                check="quotes" if unbalanced else "no-assignment",
            )
        pairs.append((match[1].strip('"'), match[2]))
        rest = rest[match.end() :].lstrip()
    return pairs


def override(defaults: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`defaults` with `changes` laid over; refuses keys that have no default, and values of another type."""
    merged = dict(defaults)
    for key, value in changes.items():
        if key not in merged:
            raise UnknownKey(key, merged, where)
        merged[key] = _same_type(key, value, merged[key], where)
    return merged


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """The annotations of a dataclass; to find them takes milliseconds, and each task's settings are read by them."""
    return typing.get_type_hints(cls)


def arguments(cls: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Arguments for the dataclass `cls` from kebab-case keys, each checked against its annotation."""
    hints = _hints(cls)
    known = {kebab(name): name for name in hints}
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise UnknownKey(key, known, where)
        arguments[known[key]] = _checked(key, value, hints[known[key]], where)
    return arguments


def _same_type(key: str, value: Any, default: Any, where: str) -> Any:
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ConfigurationError(f"{key} in {where} must be {type_name(type(default))}, not {value!r}", check="type")
    return value


def _checked(key: str, value: Any, hint: Any, where: str) -> Any:
    if typing.get_origin(hint) is Literal:
        options = typing.get_args(hint)
        if value not in options or isinstance(value, bool):
            raise ConfigurationError(
                f"{key} in {where} must be one of {', '.join(map(str, options))}, not {value!r}", check="choice"
            )
        return value
    if hint == tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigurationError(f"{key} in {where} must be a list of strings, not {value!r}", check="type")
        return tuple(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        raise ConfigurationError(f"{key} in {where} must be {type_name(hint)}, not {value!r}", check="type")
    return value


def type_name(kind: type) -> str:
    """The name of a type of values in TOML, with its article."""
    return _TYPE_NAMES.get(kind, f"of type {kind.__name__}")


def kebab(name: str) -> str:
    """A field's name as a key."""
    return name.replace("_", "-")


def finite_number(text: str) -> float | None:
    """The number that a text is; None for what is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
