"""The page's files: what is vendored is what was published, and nothing in them can reach another host or run text."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import server_app.page

STATIC = Path(server_app.page.__file__).parent / "static"
VENDOR = STATIC / "vendor"
OURS = sorted(path for path in STATIC.iterdir() if path.is_file())
SCRIPTS = [path for path in OURS if path.suffix == ".js"]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_vendored_files_are_those_that_were_published() -> None:
    said = dict(re.findall(r"\| `([^`]+)` [^|]*\| `([0-9a-f]{64})` \|", read(VENDOR / "README.md")))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del found["README.md"]
    assert said == found
    assert "1.6.32" in read(VENDOR / "README.md")
    assert "(v1.6.32)" in read(VENDOR / "uPlot.esm.js")[:400]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_nothing_leads_to_another_host(path: Path) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[a-z][a-z0-9.-]+\.[a-z]{2,}[^\s\"']*", read(path)))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "the name of SVG, which nobody fetches"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_text_is_never_read_as_markup_or_code(path: Path) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|\"style\""
    assert not re.search(forbidden, read(path))


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    page = read(STATIC / "index.html")
    assert "<style" not in page
    assert not re.search(r"\s(style|on\w+)=", page)
    assert re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
    assert all("src=" in options and not body for options, body in re.findall(r"<script([^>]*)>(.*?)</script>", page))


@pytest.mark.parametrize("path", [*SCRIPTS, STATIC / "index.html"], ids=lambda path: path.name)
def test_what_a_file_names_is_there(path: Path) -> None:
    text = read(path)
    named = re.findall(r"from \"\./([^\"]+)\"", text) + re.findall(r"(?:src|href)=\"page/([^\"?]+)", text)
    assert all((STATIC / name).is_file() for name in named)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_files_stay_small(path: Path) -> None:
    assert len(read(path).splitlines()) < 400
    assert all(len(line) <= 220 for line in read(path).splitlines())
