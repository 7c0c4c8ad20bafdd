"""The site is built without a warning, and a page that is opened asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.doc_blocks import ROOT

ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source|audio|video|embed|object)\b[^>]*\b(?:src|data|srcset)=["']?(?:https?:)?//[^"'>]+"""
    r"""|<link\b[^>]*\bhref=["']?(?:https?:)?//[^"'>]+"""
    r"""|(?:url\(|@import\s+)["']?(?:https?:)?//[^"')]+""",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--builder", "html", ROOT / "docs", out]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, env=os.environ, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_there(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_no_page_asks_another_host(site: Path) -> None:
    files = [path for ending in ("*.html", "*.css") for path in site.rglob(ending)]
    assert len(files) > 50
    found = {str(path.relative_to(site)): ELSEWHERE.findall(path.read_text(encoding="utf-8")) for path in files}
    assert {name: hits for name, hits in found.items() if hits} == {}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("commands", ["fedcore federation create", "--initial-model", "--nproc-per-node"]),
        ("settings", ["dp-noise-multiplier", "over-selection", "static-graph"]),
        ("files", ["operator-token-sha256", "min-threshold", "[node-config]"]),
        ("http", ["/v1/runs/{run}", "for operators", "RunOut"]),
        ("events", ["exchange-repeated", "bytes_up"]),
        ("metrics", ["fedcore_rounds_total", "repeated"]),
        ("modules", ["fedcore/secagg", "client_app"]),
        ("report", ["initial_sha256", "judged_by"]),
        ("python", ["supervised_app", "CompareJob", "The inverse of"]),
    ],
)
def test_the_reference_is_made_from_the_code(site: Path, page: str, words: list[str]) -> None:
    text = (site / "reference" / f"{page}.html").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", "", text)
    assert [word for word in words if word.lower() not in shown.lower()] == []
