"""Tests touch no private name of the product, not even by a string or an import, which ruff's SLF001 does not see."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("fedcore", "server_app", "client_app", "benchmarks")
EXCEPT = (
    "tests/unit/secagg/",
    "tests/thorough/secagg/",
    "tests/support/ablation_",
    "tests/architecture/test_private_names.py",
)
"""Attacks on the machines of the protocol, which look into them; and the examples below."""
OTHERS = frozenset({"_active_count", "_clients"})
"""Of asyncio's server, which has no public name for them before Python 3.13."""
_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_PRIVATE_PATH = re.compile(rf"(?:{'|'.join(PRODUCT)})(?:\.\w+)*\._[A-Za-z]\w*(?:\.\w+)*")
_BY_NAME = frozenset({"setattr", "getattr", "delattr", "hasattr"})


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each private name that is imported, or reached by a string."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PRODUCT:
                yield from ((node.lineno, alias.name) for alias in node.names if _PRIVATE.fullmatch(alias.name))
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[_, ast.Constant(str(text)), *_]):
                if called in _BY_NAME and _PRIVATE.fullmatch(text) and text not in OTHERS:
                    yield node.lineno, text
            case ast.Constant(str(text)) if _PRIVATE_PATH.fullmatch(text):
                yield node.lineno, text


def test_tests_reach_no_private_name_by_import_or_string() -> None:
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("*.py"))]
    found = [
        f"{path}:{line} {name}"
        for path in paths
        if not str(path).startswith(EXCEPT)
        for line, name in private_names(ast.parse((ROOT / path).read_text()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "from fedcore.codec import _round",
        'monkeypatch.setattr(module, "_clock", now)',
        'monkeypatch.setattr("server_app.sessions._wall", now)',
        'getattr(store, "_engine")',
    ],
)
def test_a_private_name_is_found(text: str) -> None:
    assert list(private_names(ast.parse(text)))


@pytest.mark.parametrize("text", ["from torch import _dynamo", 'setattr(module, "clock", now)', "import fedcore.codec"])
def test_other_names_are_not(text: str) -> None:
    assert not list(private_names(ast.parse(text)))
