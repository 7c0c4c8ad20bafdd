"""The site is built without a warning, and a page that is opened asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.browser import Watched, chromium, needs_browser
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


@needs_browser
def test_the_search_shows_texts_of_a_site_that_is_opened_from_a_folder(site: Path) -> None:
    """Among them one of a file that a page includes."""
    with chromium() as browser:
        watched = Watched(browser)
        for word, page in (("fedavg_decay:FedAvgDecay", "extending"), ("sendfile", "proxy")):
            watched.page.goto(f"{site.as_uri()}/search.html?q={word}")
            result = watched.page.locator(f"#search-results li:has(a[href*='{page}.html']) p.context").first
            result.wait_for()
            assert word.lower() in result.inner_text().lower()
        watched.page.goto(f"{site.as_uri()}/search.html?q=nosuchword")
        watched.page.locator("#search-results p").wait_for()
        assert watched.complaints == []
        assert watched.elsewhere(site.as_uri()) == []
