"""The map of the code: each package and module by the first line of its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sitegen.tables import code, table

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("fedcore", "server_app", "client_app")


def packages() -> str:
    """A row for each package."""
    rows = [(code(f"{name(folder)}/"), first_line(folder / "__init__.py")) for folder in _folders()]
    return table(("package", "what it does"), rows)


def modules() -> str:
    """A section for each package, with a row for each of its modules."""
    parts = []
    for folder in _folders():
        rows = [
            (code(path.name), first_line(path))
            for path in sorted(folder.glob("*.py"))
            if path.name != "__init__.py" and first_line(path)
        ]
        shown = table(("module", "what it does"), rows) if rows else ""
        parts.append(f"## {name(folder)}\n\n{first_line(folder / '__init__.py')}\n\n{shown}")
    return "\n".join(parts)


def name(path: Path) -> str:
    """A path from the top of the repository on."""
    return path.relative_to(ROOT).as_posix()


def first_line(path: Path) -> str:
    """What the module's docstring says first, with signs that Markdown would take for its own escaped."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    line = " ".join(doc.partition("\n\n")[0].split())
    return line.replace("<", "\\<").replace("*", "\\*").replace("[", "\\[")


def _folders() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("__init__.py")):
            if first_line(path):
                yield path.parent
