"""What an app asks for of its node, `[tool.fedcore.node]`: each key with its type and a sentence for the site's owner.

    [tool.fedcore.node.csv]
    type = "file"
    help = "this site's table, a CSV file with the columns of schema.toml"
    unless = "partition-id"

A site has to set a key that has no default, unless the key that `unless` names is set, as it is in simulations. The
client checks its node config against this before it takes part; `fedcore client enroll --app` writes it into the kit.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from fedcore.errors import AppError, ConfigurationError
from fedcore.wire.base import Scalar

NODE_TABLE: Final = "[tool.fedcore.node]"
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "file": (str,),
    "folder": (str,),
}
"""What a value may be in Python; `file` and `folder` are paths on the site's machine."""
_EXAMPLES: Final[Mapping[str, str]] = {
    "string": '"north"', "integer": "1", "number": "1.5", "boolean": "true", "file": '"/srv/data/FILE"',
    "folder": '"/srv/data"',
}  # fmt: skip
_FIELDS: Final = frozenset({"type", "help", "default", "unless"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKey:
    """One key.

    Args:
        name: of the key in the node config.
        type: string, integer, number, boolean, file or folder.
        help: what it is, in a sentence for the site's owner.
        default: what the app gets if the site sets none; None if the site has to set one.
        unless: another key; if that is set, this one need not be. "" for none.
    """

    name: str
    type: str
    help: str
    default: Scalar | None = None
    unless: str = ""

    @property
    def is_path(self) -> bool:
        """Whether it names a file or a folder of the site's machine."""
        return self.type in ("file", "folder")

    def is_lacking(self, values: Mapping[str, Scalar]) -> bool:
        """Whether a site still has to set it."""
        return self.name not in values and self.default is None and self.unless not in values

    @property
    def example(self) -> str:
        """A line of TOML that sets it."""
        return f"{self.name} = {_EXAMPLES[self.type]}"

    def fits(self, value: Scalar) -> bool:
        """Whether a value has the type; whether a path exists is another question."""
        return isinstance(value, _TYPES[self.type]) and (self.type == "boolean" or not isinstance(value, bool))

    def missing_path(self, value: Scalar) -> bool:
        """Whether it is a path at which this machine has no such file or folder."""
        there = {"file": os.path.isfile, "folder": os.path.isdir}.get(self.type)
        return there is not None and not there(str(value))


NodeKeys: TypeAlias = Mapping[str, NodeKey]


def node_keys(table: object, folder: Path) -> NodeKeys:
    """Read the table `[tool.fedcore.node]` of an app; raises AppError."""
    if not isinstance(table, Mapping):
        raise _bad(folder, "it has to be a table for each key")
    return {str(name): _node_key(str(name), entry, folder) for name, entry in table.items()}


def checked_node(keys: NodeKeys, values: Mapping[str, Scalar], *, folder: Path) -> dict[str, Scalar]:
    """The node config of a site, with absolute paths; raises ConfigurationError for all that is missing or wrong.

    Other keys stay as they are: a kit may be for several apps.

    Args:
        keys: what the app asks for.
        values: what the site sets.
        folder: of relative paths.
    """
    if problems := node_problems(keys, values, folder=folder):
        raise ConfigurationError(
            "the node config does not fit the app; correct it with --node-config, or under [node-config] in "
            "client.toml:\n  " + "\n  ".join(problems),
            check="node-config",
        )
    return absolute_paths(keys, values, folder)


def node_problems(keys: NodeKeys, values: Mapping[str, Scalar], *, folder: Path) -> list[str]:
    """What a site's node config lacks, and which values cannot be, a line each; `folder` is that of relative paths."""
    absolute = absolute_paths(keys, values, folder)
    problems: list[str] = []
    for name, key in keys.items():
        if key.is_lacking(values):
            problems.append(_what_to_set(key, keys, values))
        elif name not in values:
            continue
        elif not key.fits(values[name]):
            problems.append(f"{name} has to be of type {key.type}, as in {key.example}")
        elif key.missing_path(absolute[name]):
            problems.append(f"{name}: this machine has no {key.type} {absolute[name]}")
    return problems


def absolute_paths(keys: NodeKeys, values: Mapping[str, Scalar], folder: Path) -> dict[str, Scalar]:
    """The values, those that are files or folders as absolute paths; `folder` is that of relative ones."""
    paths = {name for name, value in values.items() if name in keys and keys[name].is_path and isinstance(value, str)}
    return {name: str(folder / Path(str(one)).expanduser()) if name in paths else one for name, one in values.items()}


def with_defaults(keys: NodeKeys, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """A node config, with the defaults of the keys that it does not set."""
    return {**{name: key.default for name, key in keys.items() if key.default is not None}, **values}


def node_lines(keys: NodeKeys, values: Mapping[str, Scalar]) -> str:
    """Lines for `[node-config]` of client.toml: each key below its help, as a comment if it has no value."""
    lines = [
        line for name, key in keys.items() for line in (f"# {key.help}", _line(name, values) or f"# {key.example}")
    ]
    return "".join(f"{line}\n" for line in (*lines, *(_line(name, values) for name in values if name not in keys)))


def _line(name: str, values: Mapping[str, Scalar]) -> str:
    """A line of TOML; "" for a key that has no value."""
    return f"{name} = {json.dumps(values[name], ensure_ascii=False)}" if name in values else ""


def _node_key(name: str, entry: object, folder: Path) -> NodeKey:
    if not isinstance(entry, Mapping):
        raise _bad(folder, f'{name} has to be a table, as in {name} = {{ type = "file", help = "this site\'s table" }}')
    if unknown := sorted(set(entry) - _FIELDS):
        raise _bad(folder, f"{name} has {unknown[0]!r}; it may have {', '.join(sorted(_FIELDS))}")
    kind, text, default = entry.get("type"), entry.get("help"), entry.get("default")
    if kind not in _TYPES:
        raise _bad(folder, f"the type of {name} has to be one of {', '.join(_TYPES)}")
    if not isinstance(text, str) or not text.strip():
        raise _bad(folder, f"{name} needs help, a sentence that tells a site's owner what to set")
    unless = entry.get("unless", "")
    if not isinstance(unless, str):
        raise _bad(folder, f"unless of {name} has to name another key")
    key = NodeKey(name=name, type=str(kind), help=" ".join(text.split()), default=default, unless=unless)
    if default is not None and (key.is_path or not key.fits(default)):
        raise _bad(folder, f"the default of {name} has to be of type {key.type}; files and folders have none")
    return key


def _what_to_set(key: NodeKey, keys: NodeKeys, values: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key.name, sorted(set(values) - set(keys)), n=1)
    meant = f" (instead of {near[0]}?)" if near else ""
    return f"{key.example}{meant}    {key.help}"


def _bad(folder: Path, what: str) -> AppError:
    return AppError(f"{NODE_TABLE} of {folder}/pyproject.toml: {what}", check="node-keys")
