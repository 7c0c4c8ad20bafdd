"""No files and no rooms import each other in a circle, not even for types or within a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.product import ROOT, modules


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a file names in an import, also within functions and for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in known:
                    yield name
                elif node.module in known:
                    yield node.module


def room(module: str) -> str:
    """The folder of a module in its package; a file next to the folders is a room of its own."""
    return ".".join(module.split(".")[:2])


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = {
        str(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): ROOT / path for path in modules()
    }
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Every module that `start` imports, itself or through others."""
    known: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        if (module := waiting.pop()) not in known:
            known.add(module)
            waiting += graph[module]
    return known


def test_no_files_import_each_other_in_a_circle(graph: dict[str, set[str]]):
    assert [module for module in graph if module in reached(graph, module)] == []


@pytest.mark.parametrize("package", ["fedcore", "server_app", "client_app"])
def test_no_rooms_import_each_other_in_a_circle(graph: dict[str, set[str]], package: str):
    rooms: dict[str, set[str]] = {}
    for module, imported in graph.items():
        if module.startswith(f"{package}."):
            own = room(module)
            rooms.setdefault(own, set()).update(
                room(name) for name in imported if name.startswith(f"{package}.") and room(name) != own
            )
    assert len(rooms) > 5, "few rooms were looked at"
    assert [name for name in rooms if name in reached(rooms, name)] == []
