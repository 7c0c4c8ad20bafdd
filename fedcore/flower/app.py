"""What an app's pyproject.toml says, read without running any of its code."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
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
