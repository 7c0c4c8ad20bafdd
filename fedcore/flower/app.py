"""A Flower app as files, none of which is run here: what its pyproject.toml says, and one hash over all of them.

A client agrees to run the app with a given hash, the operator submits the app with that hash, and both compute it from
the folder alone: SHA-256 over the sorted, length-prefixed paths and contents.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from fedcore.config import JobSettings
from fedcore.errors import AppError
from fedcore.wire import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerApp:
    """A Flower app in a folder.

    serverapp, clientapp: object references, `module:attribute`. run_config: `[tool.flwr.app.config]` with nested keys
    joined by dots, as Flower does. settings: `[tool.fedcore]`, which Flower ignores.
    """

    folder: Path
    name: str
    serverapp: str
    clientapp: str
    run_config: Mapping[str, Scalar]
    settings: JobSettings

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read `folder`/pyproject.toml; raises AppError, UnknownKey or ConfigurationError."""
        document = _read(folder / "pyproject.toml")
        tool = document.get("tool", {})
        flower = tool.get("flwr", {}).get("app")
        if not isinstance(flower, dict):
            raise AppError(f"{folder} is not a Flower app: its pyproject.toml has no [tool.flwr.app] table")
        components = flower.get("components", {})
        return cls(
            folder=folder.resolve(),
            name=str(document.get("project", {}).get("name", folder.resolve().name)),
            serverapp=_reference(components, "serverapp", folder),
            clientapp=_reference(components, "clientapp", folder),
            run_config=_flatten(flower.get("config", {})),
            settings=JobSettings.from_mapping(
                tool.get("fedcore", {}), where=f"[tool.fedcore] of {folder}/pyproject.toml"
            ),
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AppError(f"{path.parent} is not a Flower app: it has no pyproject.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AppError(f"{path} cannot be read as TOML: {error}") from None


def _reference(components: Mapping[str, Any], key: str, folder: Path) -> str:
    reference = components.get(key)
    if not isinstance(reference, str) or reference.count(":") != 1:
        raise AppError(f"{folder}/pyproject.toml needs {key} = 'module:attribute' in [tool.flwr.app.components]")
    return reference


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        elif isinstance(value, bool | int | float | str):
            flat[prefix + key] = value
        else:
            raise AppError(f"run config {prefix + key!r} must be a bool, int, float or string")
    return flat


SUFFIXES = frozenset({".py", ".toml", ".json", ".txt", ".yaml", ".yml"})
MAX_BYTES = 32 * 2**20
_DOMAIN = b"fedcore/app/v1"
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "build", "dist"})


@dataclass(frozen=True, slots=True)
class AppBundle:
    """The files of an app: POSIX path relative to its folder -> content."""

    files: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if "pyproject.toml" not in self.files:
            raise AppError("the app has no pyproject.toml")
        if sum(map(len, self.files.values())) > MAX_BYTES:
            raise AppError(f"the app's files are larger than {MAX_BYTES >> 20} MiB; keep data out of its folder")
        for path in self.files:
            _check_path(path)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read an app's folder: Python sources and small configuration files, without hidden folders and caches."""
        if not (folder / "pyproject.toml").is_file():
            raise AppError(f"{folder} is not a Flower app: it has no pyproject.toml")
        files: dict[str, bytes] = {}
        for path in _walk(folder):
            if path.stat().st_size > MAX_BYTES:
                raise AppError(f"{path} is larger than {MAX_BYTES >> 20} MiB; keep data out of the app's folder")
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
        return cls(files)

    @property
    def sha256(self) -> str:
        """The app's hash, lower-case hex."""
        digest = hashlib.sha256(_DOMAIN)
        for path in sorted(self.files):
            for part in (path.encode(), self.files[path]):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    def write(self, folder: Path) -> None:
        """Write the files below `folder`, which must not exist yet."""
        folder.mkdir(parents=True)
        for path, content in self.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def _walk(folder: Path) -> Iterator[Path]:
    for current, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [
            name
            for name in folders
            if name not in _SKIPPED_FOLDERS and not name.startswith(".") and not name.endswith(".egg-info")
        ]
        for name in names:
            path = Path(current) / name
            if path.suffix in SUFFIXES and not name.startswith(".") and not path.is_symlink():
                yield path


def _check_path(path: str) -> None:
    """Refuse what could leave the folder when written."""
    parts = PurePosixPath(path).parts
    unsafe = not parts or path.startswith("/") or "\\" in path or "\0" in path or ".." in parts
    if unsafe or PurePosixPath(path).as_posix() != path or PurePosixPath(path).suffix not in SUFFIXES:
        raise AppError(f"the app holds a file with a path that is not allowed: {path!r}")
