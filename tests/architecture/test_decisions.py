"""Decision records: the index lists each of them, and every reference leads to one that is in force."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "adr"
RECORDS = {int(path.name[:4]): path for path in sorted(FOLDER.glob("0*.md"))}
LONGEST = 460
"""Words of a record."""


def test_a_record_is_short_and_has_its_number() -> None:
    for number, path in RECORDS.items():
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. "), path.name
        assert "\nStatus: " in text, path.name
        assert len(text.split()) <= LONGEST, f"{path.name}: measurements belong to benchmarks/results"


def test_the_index_lists_each_record_and_what_it_replaces() -> None:
    rows = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \| (.+) \| ([\d, ]*)\|$", index(), re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(RECORDS)
    replaced: set[int] = set()
    for number, title, file, _, numbers in rows:
        path = RECORDS[int(number)]
        assert file == path.name
        assert path.read_text(encoding="utf-8").splitlines()[0] == f"# {number}. {title}"
        replaced |= {int(one) for one in re.findall(r"\d+", numbers)}
    unused = {int(one) for one in re.findall(r"\d+", index().split("Numbers with no record:")[1].split("\n")[0])}
    assert replaced | unused | set(RECORDS) == set(range(1, max(RECORDS.keys() | replaced) + 1))
    assert replaced & set(RECORDS) == set()


def test_every_reference_leads_to_a_record() -> None:
    for path, number in references():
        assert number in RECORDS, f"{path} names the decision {number}, see docs/adr/index.md for what replaced it"


def test_users_read_no_numbers_of_decisions() -> None:
    """Link texts in documents for users say what a decision is about; those for contributors may number them."""
    contributors = {"docs/architecture.md"}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        if name not in contributors and path.parent != FOLDER:
            text = re.sub(r"\]\([^)]*\)", "]", path.read_text(encoding="utf-8"))
            assert not re.search(r"\bADR \d|\badr/\d|\bdecision \d", text), name
    assert not re.search(r"\bADR \d|adr/\d", (ROOT / "README.md").read_text(encoding="utf-8"))


def index() -> str:
    return (FOLDER / "index.md").read_text(encoding="utf-8")


def references() -> Iterator[tuple[str, int]]:
    """Every file that names a record, with its number."""
    folders = ("fedcore", "server_app", "client_app", "benchmarks", "docs", "examples", "docker", "deploy", "tests")
    for path in [*ROOT.glob("*.md"), *(path for folder in folders for path in sorted((ROOT / folder).rglob("*")))]:
        if path.suffix in {".py", ".md", ".toml", ".js"} and path != Path(__file__):
            for found in re.finditer(r"\bADR (\d+)\b|\badr/(\d{4})", path.read_text(encoding="utf-8")):
                yield path.relative_to(ROOT).as_posix(), int(found[1] or found[2])
