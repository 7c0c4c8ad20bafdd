"""The local page of a client's owner: who may open it, what it refuses, and the approval after the difference."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.tiny import TINY

from client_app.owner.page import HEADERS, OwnerPage
from client_app.records.offers import Offers
from fedcore.flower.app import AppBundle

PORT = 18_999
HERE = f"http://127.0.0.1:{PORT}"
OLD = AppBundle.from_folder(TINY)
NEW = AppBundle({**OLD.files, "more.py": b"print('<script>alert(1)</script>')\n"})
APP = f"/apps/{NEW.sha256}"


class Browser:
    """Keeps cookies and follows redirects."""

    def __init__(self, page: OwnerPage) -> None:
        transport = httpx.ASGITransport(app=page.application())
        self._client = httpx.AsyncClient(transport=transport, base_url=HERE, follow_redirects=True)

    def get(self, path: str, **request: Any) -> httpx.Response:
        return asyncio.run(self._client.get(path, **request))

    def post(self, path: str, **request: Any) -> httpx.Response:
        return asyncio.run(self._client.post(path, **request))


@pytest.fixture
def offers(kit: Path) -> Offers:
    made = Offers(kit / "state")
    (kit / "state").mkdir(mode=0o700)
    OLD.install(kit / "state" / "apps")
    made.note_installed(OLD.sha256, OLD.sha256)
    made.take(NEW.sha256, NEW.files)
    return made


@pytest.fixture
def page(kit: Path, offers: Offers) -> OwnerPage:
    return OwnerPage(kit, None, PORT)


@pytest.fixture
def stranger(page: OwnerPage) -> Browser:
    return Browser(page)


@pytest.fixture
def owner(page: OwnerPage, stranger: Browser) -> Browser:
    assert stranger.get(page.url).status_code == 200
    return stranger


def seen_of(answer: httpx.Response) -> dict[str, str]:
    """What the form of a page with a difference holds."""
    (value,) = re.findall(r'name="seen" value="(\w+)"', answer.text)
    return {"seen": value}


def test_the_address_opens_it_once(page: OwnerPage, stranger: Browser) -> None:
    assert stranger.get("/").status_code == 403
    url = page.url
    opened = stranger.get(url, follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    cookie = opened.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert stranger.get("/").status_code == 200
    again = Browser(page).get(url)
    assert (again.status_code, "used before" in again.text) == (403, True)


@pytest.mark.parametrize("token", ["", "wrong", "ä"])
def test_another_token_opens_nothing(stranger: Browser, token: str) -> None:
    assert stranger.get("/", params={"token": token}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/export.html", APP])
def test_nothing_is_shown_without_the_cookie(stranger: Browser, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 403
    assert "client-1" not in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1.evil.example:{PORT}"]
)
def test_a_name_that_was_made_to_point_here_is_refused(owner: Browser, host: str) -> None:
    assert owner.get("/", headers={"host": host}).status_code == 421


def test_it_shows_the_client_and_says_what_a_browser_may_do(owner: Browser) -> None:
    for path in ("/", "/page.css", "/page.js", "/export.html", "/export.md", "/export.json", APP):
        answer = owner.get(path)
        assert answer.status_code == 200, path
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    shown = owner.get("/").text
    assert NEW.sha256 in shown
    assert "<script>" not in owner.get(APP).text
    assert "style=" not in shown, "the policy allows no inline style"
    assert not re.findall(r"<script(?! src)|<style|\son\w+=", shown)


def test_an_app_is_approved_after_its_difference_was_seen(owner: Browser, offers: Offers) -> None:
    shown = owner.get(APP)
    assert "more.py" in shown.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown.text
    done = owner.post(APP, data=seen_of(shown), headers={"origin": HERE})
    assert "You approved this app" in done.text
    approval = offers.approval()
    assert approval is not None
    assert (approval.app, approval.instead_of) == (NEW.sha256, OLD.sha256)


@pytest.mark.parametrize(
    "origin", [None, "null", "https://evil.example", f"http://localhost:{PORT}", "http://127.0.0.1"]
)
def test_a_form_of_another_site_approves_nothing(owner: Browser, offers: Offers, origin: str | None) -> None:
    data = seen_of(owner.get(APP))
    answer = owner.post(APP, data=data, headers={"origin": origin} if origin else {})
    assert answer.status_code == 403
    assert offers.approval() is None


def test_nothing_is_approved_unseen_or_for_another_difference(owner: Browser, offers: Offers) -> None:
    other = AppBundle({**OLD.files, "other.py": b""})
    offers.take(other.sha256, other.files)
    data = seen_of(owner.get(APP))
    for path, form in ((APP, {}), (APP, {"seen": "ä"}), (f"/apps/{other.sha256}", data)):
        assert owner.post(path, data=form, headers={"origin": HERE}).status_code == 403
    other.install(offers.folder.parent / "apps")
    offers.note_installed(OLD.sha256, other.sha256)  # the agent has taken up another app since the page was made
    assert owner.post(APP, data=data, headers={"origin": HERE}).status_code == 403
    assert offers.approval() is None


def test_a_form_that_is_too_large(owner: Browser, offers: Offers) -> None:
    assert owner.post(APP, content=b"x" * 5000, headers={"origin": HERE}).status_code == 413


def test_policy_comes_first(kit: Path, owner: Browser, offers: Offers) -> None:
    policy = kit / "policy.toml"
    data = seen_of(owner.get(APP))
    policy.write_text(re.sub(r"(?m)^#? *app-sha256.*$", f'app-sha256 = "{OLD.sha256}"', policy.read_text()))
    assert "<form" not in owner.get(APP).text
    assert owner.post(APP, data=data, headers={"origin": HERE}).status_code == 409
    assert offers.approval() is None


def test_an_app_that_is_not_offered(owner: Browser) -> None:
    assert owner.get(f"/apps/{'ab' * 32}").status_code == 409
    assert owner.get("/apps/../../etc").status_code in (404, 409)
