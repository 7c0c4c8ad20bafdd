"""Errors are recognised by what does not change when their sentences do: type, check, key, number, name.

A test that expects an error by words of its sentence would break with every better sentence, so nobody would write one.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
WORDS = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,}")
FILES = sorted(TESTS.rglob("*.py"))


def literals(value: ast.expr) -> list[str]:
    """The texts in an expression: those of an f-string without what is filled in."""
    return [part.value for part in ast.walk(value) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_error_is_expected_by_its_sentence(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    sentences = [
        f"{path.relative_to(TESTS)}:{argument.value.lineno}: {text!r}"
        for call in calls
        for argument in call.keywords
        if argument.arg == "match"
        for text in literals(argument.value)
        if WORDS.search(text)
    ]
    assert not sentences, "expect the check, key, number or name (tests/support/raising.py): " + "; ".join(sentences)
