"""The page in a real browser, before a made-up federation: who can use it, and what it does when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from support.browser import DESK, PHONE, Watched, chromium, needs_browser
from support.made_up_page import OPERATOR, VIEWER, made_up_page
from support.made_up_world import RUN, World
from support.ports import reserved_port

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def url(world: World) -> Iterator[str]:
    with reserved_port() as port, made_up_page(world, port) as address:
        yield address


def signed_in(browser: Browser, url: str, token: str = OPERATOR, *, done: str = "Round 24 of 40", **options) -> Watched:
    watched = Watched(browser, **options)
    watched.page.goto(f"{url}#view={token}")
    expect(watched.page.locator(".round")).to_have_text(done)
    expect(watched.page.locator(".plots .uplot")).to_have_count(3)
    return watched


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_no_serious_barrier_in_any_theme_and_width(browser: Browser, url: str, theme: str, viewport: dict) -> None:
    watched = Watched(browser, theme=theme, viewport=viewport)
    page = watched.page
    page.goto(url)
    expect(page.locator("#token")).to_be_focused()
    assert watched.findings() == []
    page.keyboard.type(OPERATOR)
    page.keyboard.press("Enter")
    expect(page.locator(".plots .uplot")).to_have_count(3)
    for summary in page.locator("summary").all():
        summary.click()
    assert (watched.findings(), watched.sideways()) == ([], 0)
    page.get_by_role("button", name="Stop …").click()
    assert watched.findings() == []
    page.keyboard.press("Escape")
    page.goto(f"{url}#run={RUN}")
    expect(page.locator(".facts div")).not_to_have_count(0)
    assert (watched.findings(), watched.sideways()) == ([], 0)
    page.goto(f"{url}#links")
    page.locator("#link-label").fill("Ethics board")
    page.keyboard.press("Enter")
    expect(page.locator("#link-url")).to_be_visible()
    assert (watched.findings(), watched.sideways()) == ([], 0)
    assert (watched.elsewhere(url), watched.complaints) == ([], []), "no other host, and nothing against the policy"
    watched.context.close()


def test_a_link_signs_in_leaves_the_address_and_can_only_look(browser: Browser, url: str) -> None:
    watched = signed_in(browser, url, VIEWER)
    page = watched.page
    assert VIEWER not in page.url
    assert not any(VIEWER in asked for asked in watched.asked)
    assert page.get_by_role("button", name="Stop").count() == 0
    assert page.get_by_role("link", name="Read-only links").count() == 0
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#token")).to_be_visible()
    page.goto(f"{url}#view=not-a-token")
    expect(page.get_by_role("alert").filter(has_text="not a token")).to_be_visible()
    watched.context.close()


def test_everything_is_reached_by_the_keyboard_alone(browser: Browser, world: World, url: str) -> None:
    watched = signed_in(browser, url)
    page = watched.page
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
    wanted = [
        "Skip to the content",
        "Overview",
        "Dark",
        "Stop …",
        "marks-filter",
        "members-filter",
        "20261120-heart-0c1e",
    ]
    assert [name for name in wanted if name not in reached] == []
    assert reached.index("Stop …") < reached.index("marks-filter")
    page.get_by_role("button", name="Stop …").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("nothing of it is unmasked")
    page.keyboard.press("Escape")
    assert world.status == "running", "Escape leaves it as it is"
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop the run").press("Enter")
    expect(page.locator(".run-head .badge")).to_contain_text("stopped")
    assert world.status == "cancelled"
    watched.context.close()


def test_a_stopped_run_goes_on_and_a_link_is_revoked(browser: Browser, world: World, url: str) -> None:
    world.status = "cancelled"
    watched = signed_in(browser, url, done="23 rounds of 40")
    page = watched.page
    page.get_by_role("button", name="Resume …").click()
    expect(page.get_by_role("dialog")).to_contain_text("continues after its last exchange")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator(".run-head .badge")).to_contain_text("running")
    expect(page.locator(".happened")).to_contain_text("The run resumed: the operator resumed it")
    page.goto(f"{url}#links")
    for label in ("Ethics board", "The press"):
        page.locator("#link-label").fill(label)
        page.keyboard.press("Enter")
        expect(page.get_by_role("row", name=label)).to_be_visible()
    page.get_by_role("button", name="Revoke the link for The press").click()
    expect(page.get_by_role("dialog")).to_contain_text("signed out at once")
    page.get_by_role("button", name="Revoke it").click()
    expect(page.get_by_role("row", name="The press")).to_have_count(0)
    assert [link["label"] for link in world.links] == ["Ethics board"]
    watched.context.close()


def test_a_lost_connection_is_said_and_mended(browser: Browser, world: World) -> None:
    with reserved_port() as port:
        with made_up_page(world, port) as url:
            watched = signed_in(browser, url)
        lost = watched.page.get_by_text("Connection lost, retrying")
        expect(lost).to_be_visible()
        world.end_round()
        world.open_exchange("train")
        with made_up_page(world, port) as url:
            # The made-up server has forgotten the session, as one whose database was restored.
            expect(watched.page.locator("#token")).to_be_visible()
            watched.page.goto(f"{url}#view={OPERATOR}")
            expect(watched.page.locator(".round")).to_have_text("Round 25 of 40")
            expect(lost).to_be_hidden()
        watched.context.close()


def test_the_theme_that_somebody_chose_is_kept(browser: Browser, url: str) -> None:
    watched = signed_in(browser, url, theme="light")
    page = watched.page
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Switch to the dark theme").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    expect(page.locator(".round")).to_have_text("Round 24 of 40")
    assert page.evaluate(ground) == dark
    watched.context.close()


def test_names_from_elsewhere_are_text(browser: Browser, world: World, url: str) -> None:
    bad = "<img src=x onerror=alert(1)>"
    world.add({"kind": "warning", "line": bad})
    watched = signed_in(browser, url)
    expect(watched.page.locator(".happened")).to_contain_text(bad)
    assert watched.page.locator("main img").count() == 0
    watched.context.close()


def test_updates_that_the_server_can_read_are_not_called_hidden(browser: Browser) -> None:
    with reserved_port() as port, made_up_page(World(aggregation="plain"), port) as url:
        watched = signed_in(browser, url)
        expect(watched.page.locator(".saw")).to_contain_text("not protected by secure aggregation")
        assert watched.page.get_by_text("cannot read the update of a single site").is_hidden()
        lede = watched.page.locator("h1 + .lede")
        expect(lede).to_contain_text("this server can read the update of every single site")
        expect(lede).not_to_contain_text("masked with secret numbers")
        watched.context.close()
