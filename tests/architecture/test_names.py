"""No name of the product is a participle: it says what it holds, `match` or `cohort`, not `found` or `asked`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("fedcore", "server_app", "client_app")
WORDS: Final = frozenset(
    {"ahead", "anew", "asked", "counted", "ending", "found", "given", "gone", "heard", "held", "kept", "lent"}
    | {"place", "said", "saw", "seen", "shown", "taken", "told", "wanted", "whole"}
)
_PERHAPS: Final = re.compile(rf"(?:^|[\s_(\[.*])(?:{'|'.join(sorted(WORDS))})_*(?: ?[=(,:)\]]| in )", re.IGNORECASE)
"""What every such name looks like, and some prose: most files need not be parsed."""

EXCEPT: Final = {
    ("client_app/ranks/messages.py", "counted"): "a key of a message between the machines of a client",
    ("fedcore/data/statistics.py", "asked"): "public, and a key of the statistics in JSON",
    ("fedcore/errors.py", "asked"): "public, and a key of a withdrawal",
    ("fedcore/flower/apps/personalization.py", "whole"): "public",
    ("fedcore/run/exchange.py", "ahead"): "hashed in the journal, by this name",
    ("fedcore/run/groups.py", "asked"): "a key of a task, which is hashed",
    ("fedcore/wire/uploads.py", "asked"): "a key of a withdrawal",
    ("server_app/exchanges/outcome.py", "gone"): "a key of a column of the database",
    ("server_app/exchanges/stages.py", "ASKED"): "a state",
    ("server_app/exchanges/stages.py", "TAKEN"): "a state",
    ("server_app/runs/app/messages.py", "ahead"): "hashed in the journal, by this name",
    ("server_app/storage/migrations/versions/revision_0002.py", "_KEPT"): "migrations stay as they were released",
    ("server_app/storage/tables.py", "gone"): "a column of the database",
    ("server_app/storage/tables.py", "place"): "a column of the database",
}
"""File and name of those that have to stay, and why."""


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that is named: variables, attributes, parameters, functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def participles(source: str) -> list[tuple[int, str]]:
    """Those of the names in a source that are one of `WORDS`."""
    if not _PERHAPS.search(source):
        return []
    return [(line, name) for line, name in names(ast.parse(source)) if name.strip("_").lower() in WORDS]


def test_no_name_is_a_participle() -> None:
    named = [
        (str(path.relative_to(ROOT)), line, name)
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in participles(path.read_text(encoding="utf-8"))
    ]
    wrong = [f"{path}:{line} {name}" for path, line, name in named if (path, name) not in EXCEPT]
    assert not wrong, "name what it holds:\n" + "\n".join(wrong)
    assert EXCEPT.keys() == {(path, name) for path, _, name in named}, "an exception that is needed no more"


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "for asked in (): ...",
        "def take(given): ...",
        "lambda held: held",
        "self._seen = ()",
        "async def told(): ...",
        "class Heard(Exception): ...",
        "for one, (told, _) in (): ...",
        "[a for said, a in ()]",
        "with open(name) as kept, lock: ...",
        "try: ...\nexcept ValueError as gone: ...",
    ],
)
def test_a_participle_is_seen(source: str) -> None:
    assert participles(source)


@pytest.mark.parametrize("source", ["was_taken = 1", "print(found)", "'kept'", "founded = 1"])
def test_other_words_are_not(source: str) -> None:
    assert not participles(source)
