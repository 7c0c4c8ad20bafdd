"""Difference between an offered app and the installed one, for the owner who decides on it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedcore.errors import FedcoreError
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.system import terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class AppDifference:
    """Paths of files, and config, that differ."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    config: Mapping[str, str]
    """Changes of the run config and the settings, in words."""
    unreadable: str = ""
    """Why pyproject.toml cannot be read, "" if it can."""

    def to_json(self) -> dict[str, Any]:
        """The difference as JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def lines(self) -> list[str]:
        """The difference as lines of text."""
        files = (("new", self.added), ("gone", self.removed), ("changed", self.changed))
        lines = [f"{what:<8} {visible(path)}" for what, paths in files for path in paths]
        lines += [f"{'config':<8} {visible(key)}: {visible(change)}" for key, change in self.config.items()]
        return [*lines, *([f"{'config':<8} cannot be read: {visible(self.unreadable)}"] if self.unreadable else [])]


def difference(before: AppBundle, after: AppBundle, *, folders: tuple[Path, Path]) -> AppDifference:
    """Compare two apps.

    Args:
        before: the installed app.
        after: the offered app.
        folders: where the two lie.
    """
    old, new = before.files, after.files
    unreadable = ""
    try:
        config = _changes(*(_says(FlowerApp.load(folder)) for folder in folders))
    except FedcoreError as error:
        config, unreadable = {}, str(error)
    return AppDifference(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(path for path in new.keys() & old.keys() if new[path] != old[path])),
        config=config,
        unreadable=unreadable,
    )


def unified(before: AppBundle, after: AppBundle) -> Iterator[str]:
    """The unified diff of all files, without characters that a terminal would act on."""
    for path in sorted(before.files.keys() | after.files.keys()):
        old, new = (_text(bundle.files.get(path, b"")) for bundle in (before, after))
        for line in difflib.unified_diff(old, new, f"installed/{path}", f"offered/{path}", lineterm=""):
            yield visible(line)


def visible(text: str) -> str:
    """A line with what is not printable as its escape: an offer must not steer the terminal, nor hide a word."""
    return terminal.visible(text, keep="\t")


def _says(app: FlowerApp) -> dict[str, Any]:
    return {**app.run_config, **{f"[tool.fedcore] {key}": value for key, value in app.settings.to_mapping().items()}}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    keys = sorted(old.keys() | new.keys())
    return {key: f"{_value(old, key)} -> {_value(new, key)}" for key in keys if _value(old, key) != _value(new, key)}


def _value(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "nothing"


def _text(content: bytes) -> list[str]:
    return content.decode("utf-8", errors="backslashreplace").split("\n")
