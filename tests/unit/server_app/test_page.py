"""The page's files: where they are, how long a browser keeps them, and what they may do."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from support.serverside import Site

import server_app.page
from server_app.runs.leadership import Leadership

STATIC = Path(server_app.page.__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


def check_headers(answer: httpx.Response) -> None:
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def references(text: str, name: str) -> set[str]:
    """Addresses of the files that a file of the page names, queries included."""
    if name.endswith(".html"):
        return set(re.findall(r'(?:href|src)="(page/[^"]+)"', text))
    folder = name.rpartition("/")[0]
    found = re.findall(r'(?:from|import) ?\(?"\./([^"]+)"', text)
    return {"/".join(filter(None, ["page", folder, other])) for other in found}


async def test_all_that_the_page_names_is_there_and_named_with_its_version(here: Site) -> None:
    answer = await here.http.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    check_headers(answer)
    asked, open_ones = set(), references(answer.text, "index.html")
    assert open_ones
    while open_ones:
        address = open_ones.pop()
        asked.add(address)
        assert re.search(r"\?v=[0-9a-f]{12}$", address), address
        found = await here.http.get(f"/{address}")
        assert found.status_code == 200, address
        assert "immutable" in found.headers["cache-control"]
        check_headers(found)
        if address.partition("?")[0].endswith(".js"):
            assert found.headers["content-type"] == "text/javascript; charset=utf-8"
            open_ones |= references(found.text, address.partition("?")[0].removeprefix("page/")) - asked
    versions = {address.partition("?")[2] for address in asked}
    assert len(versions) == 1, "a module that is loaded twice is two modules"
    scripts = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js")}
    assert {f"page/{script}" for script in scripts} <= {address.partition("?")[0] for address in asked}


async def test_a_browser_that_has_a_file_is_not_sent_it_again(here: Site) -> None:
    for path in ("/", "/page/style.css"):
        first = await here.http.get(path)
        assert first.headers["cache-control"] == "no-cache"
        again = await here.http.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "../__init__.py", "%2e%2e/__init__.py", "vendor", ""])
async def test_nothing_else_is_there(here: Site, name: str) -> None:
    assert (await here.http.get(f"/page/{name}")).status_code == 404


async def test_a_standby_shows_the_page_and_nothing_of_the_federation(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Leadership, "leads", False)
    assert (await here.http.get("/")).status_code == 200
    assert (await here.http.get("/page/style.css")).status_code == 200
    for path in ("/v1/session", "/v1/live", "/v1/runs"):
        assert (await here.http.get(path)).json()["type"] == "urn:fedcore:problem:not-leading"


def test_the_files_have_no_script_or_style_within() -> None:
    """The policy lets none of them run."""
    for path in STATIC.glob("*.html"):
        text = path.read_text()
        assert not re.search(r"<style|style=|\son[a-z]+=|<script(?![^>]*\ssrc=)", text), path


async def test_the_schema_is_there_for_the_programming_interface(here: Site) -> None:
    paths = (await here.http.get("/openapi.json")).json()["paths"]
    assert {"/v1/session", "/v1/links", "/v1/live", "/v1/runs/{run}/rounds"} <= set(paths)
    assert "text/event-stream" in paths["/v1/live"]["get"]["responses"]["200"]["content"]
