"""Writes an app: from jinja2 templates to files in a new folder."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedcore.cli.new.imports import import_block
from fedcore.errors import ConfigurationError, EnvironmentFailure

NOT_PRIVATE: Final[Mapping[str, Any]] = {"private": False, "clip": 1.0, "accuracy": "", "figure": "eval_loss"}
"""What templates name about differential privacy, of an app without it."""
_FILES: Final = "files"
_COMMON: Final = "common"
_NAME: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9]|[-_](?=[A-Za-z0-9]))*")


def project_name(folder: Path) -> str:
    """The name that the folder gives its app; raises ConfigurationError for one that no package can have."""
    name = folder.name
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > 60:
        raise ConfigurationError(
            f"{name!r} is no name for an app: take letters, digits, - and _, with a letter in front, as in my-hospitals"
        )
    return name


def package_name(name: str) -> str:
    """Of the app's code: unlike any library that the name may be that of."""
    return f"{name.lower().replace('-', '_')}_app"


def check_free(folder: Path) -> None:
    """Raise ConfigurationError if the folder, or a file of its name, is there already."""
    if folder.exists() or folder.is_symlink():
        raise ConfigurationError(f"{folder} is there already; take another name, or remove it first")


def write_app(
    folder: Path, template: str, values: Mapping[str, Any], others: Mapping[str, str] | None = None
) -> list[Path]:
    """Make `folder` and write the template's files, those that all templates share among them.

    Returns all paths in `folder`, sorted. Raises ConfigurationError and EnvironmentFailure.

    Args:
        values: what the templates name, besides `name` and `package`.
        others: further files, by their path.
    """
    name = project_name(folder)
    check_free(folder)
    package = package_name(name)
    imports = partial(import_block, package=package)
    known = {"name": name, "package": package, "imports": imports, **NOT_PRIVATE, **values}
    rendered = {
        _target(path, package): _environment().get_template(f"{part}/{path}.j2").render(known)
        for part in (_COMMON, template)
        for path in _paths(files("fedcore.cli.new") / _FILES / part)
    }
    rendered |= {Path(path): text for path, text in (others or {}).items()}
    try:
        for path, text in rendered.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailure(f"{folder} cannot be written: {error.strerror}") from None
    return sorted(rendered)


@cache
def _environment() -> Environment:
    # What is written is Python, TOML and Markdown, and nothing of it is shown by a browser.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("fedcore.cli.new", _FILES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["toml"] = lambda text: json.dumps(str(text), ensure_ascii=False)
    environment.filters["e_toml"] = lambda text: json.dumps(str(text), ensure_ascii=False)[1:-1]
    return environment


def _paths(folder: Traversable, before: str = "") -> list[str]:
    """Of the templates below, without their ending."""
    paths = []
    for entry in folder.iterdir():
        if entry.is_dir():
            paths += _paths(entry, f"{before}{entry.name}/")
        elif entry.name.endswith(".j2"):
            paths.append(before + entry.name.removesuffix(".j2"))
    return paths


def _target(path: str, package: str) -> Path:
    return Path(path.replace("__package__", package).replace("dot-", "."))
