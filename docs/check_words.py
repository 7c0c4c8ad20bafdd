"""Words and turns that a native reader stumbles over, in documents, docstrings and messages.

    python docs/check_words.py [--count] [PATH ...]

Prints each as `file:line: word: what to say instead`, and ends with status 1 if there is one. `WORDS` is the list. In
Python files it reads docstrings and other strings with a space in them; comments and names are not looked at.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = (
    "fedcore",
    "server_app",
    "client_app",
    "docs",
    "examples",
    "benchmarks",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
)
WORDS: Final = {
    r"whoever": "name who: a client, an owner, the caller",
    r"anew": "again",
    r"what comes of": "the result of",
    r"comes? of (?:it|them|that|this)": "name the result",
    r"becomes? of": "what happens to",
    r"in the place of": "instead of, in place of",
    r"beside(?!:)": "next to, in addition to, as well as",
    r"of (?:ours|theirs|one's own)": "our, their, your own",
    r"(?:is|are|was|were) told (?:so|why|what|to|of|that|by|how|when|where)": "say who tells whom",
    r"as far as (?:is|that is) known": "say who knows",
    r"nobody knows": "say what is missing",
    r"lets? (?:it|them) be": "leave",
    r"takes? (?:it|them|runs?|one) up again": "resume",
    r"goes on with": "continues with",
    r"gives? away": "reveals",
    r"there at once": "available together",
    r"has to do with": "concerns",
    r"that which": "what, the ... that",
    r"where (?:there (?:is|are)|no)": "if there is, if no: 'where' is a place",
    r"(?:Raises? \w+|\w+Error|Rejection|None|nothing|empty) where": "if",
    r"once more": "again",
    r"all the same(?! )": "anyway, still",
    r"speaks? of": "concerns, is about",
    r"by (?:him|her)self": "say who",
}  # fmt: skip
_PATTERN: Final = re.compile(r"\b(?:" + "|".join(f"({turn})" for turn in WORDS) + r")\b", re.IGNORECASE)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The prose of a file: line and text of each piece."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), start=1)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, line


def alerts(paths: Sequence[Path]) -> Iterator[tuple[Path, int, str, str]]:
    """File, line, what stands there, and what to say instead."""
    for path in paths:
        for line, text in texts(path):
            for match in _PATTERN.finditer(text):
                turn = list(WORDS)[next(i for i, group in enumerate(match.groups()) if group)]
                yield path, line, match.group(0), WORDS[turn]


def files(folders: Sequence[str]) -> list[Path]:
    """Python files, documents and templates of these folders, but for this one."""
    kinds = {".py", ".md", ".j2"}
    listed = [
        path for name in folders for path in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
    ]
    return sorted(path for path in listed if path.suffix in kinds and path != Path(__file__).resolve())


def main(arguments: Sequence[str]) -> int:
    """Print the alerts; the number of them with --count."""
    found = list(alerts(files([word for word in arguments if not word.startswith("--")] or FOLDERS)))
    if "--count" in arguments:
        for path, number in Counter(str(path.relative_to(ROOT)) for path, *_ in found).most_common():
            sys.stdout.write(f"{number:4} {path}\n")
        sys.stdout.write(f"{len(found)} alerts\n")
    else:
        for path, line, word, instead in found:
            sys.stdout.write(f"{path.relative_to(ROOT)}:{line}: {word}: {instead}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
