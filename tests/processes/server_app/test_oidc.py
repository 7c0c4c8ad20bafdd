"""A login at an identity provider, as an outsider sees it: two servers, a browser that follows redirects, commands."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from support.browser import Watched, chromium, needs_browser
from support.deployment import ENVIRONMENT, wait_until
from support.ports import reserved_port

from fedcore.federation import FederationFolder, OperatorKit, Policy, provision

pytestmark = pytest.mark.skipif(
    find_spec("oidc_provider_mock") is None, reason="needs oidc-provider-mock, of the extra dev"
)
TESTS = Path(__file__).parents[2]
SECONDS = 600.0


@dataclass(frozen=True)
class World:
    fleet: FederationFolder
    kit: OperatorKit
    issuer: str
    log: Path

    def browser(self) -> httpx.Client:
        trusted = ssl.create_default_context(cafile=str(self.kit.ca_file))
        return httpx.Client(verify=trusted, follow_redirects=True, timeout=SECONDS, headers={"X-Fedcore": "1"})

    def command(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **ENVIRONMENT, **variables}
        return subprocess.run(
            [sys.executable, "-m", "fedcore", *words, "--operator", str(self.kit.folder)],
            capture_output=True, text=True, env=environment, timeout=SECONDS, check=False,
        )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with reserved_port() as port, reserved_port() as other:
        fleet = provision(
            tmp_path / "fed", name="fleet", clients=2, now=datetime.now(UTC), hosts=["127.0.0.1"], port=port,
            policy=Policy.own(2),
        )  # fmt: skip
        issuer = f"http://127.0.0.1:{other}"
        secret = fleet.server / "oidc_secret"
        secret.touch(mode=0o600)
        secret.write_text("of the client\n")
        with (fleet.server / "server.toml").open("a") as settings:
            settings.write(f'[oidc]\nissuer = "{issuer}"\nclient-id = "fedcore"\nclient-secret-file = "oidc_secret"\n')
            settings.write('role-claim = "realm_access.roles"\noperators = ["operate"]\nviewers = ["watch"]\n')
        log, ready = tmp_path / "server.log", tmp_path / "ready"
        kit = OperatorKit.load(fleet.operator)
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(TESTS)}
        server = [sys.executable, "-m", "fedcore", "server", "--federation", str(fleet.folder), "--log-json"]
        provider = [sys.executable, "-m", "support.oidc_provider", str(other)]
        with log.open("w") as lines, (tmp_path / "provider.log").open("w") as others:
            processes = [
                subprocess.Popen([*server, "--ready-file", str(ready)], stderr=lines),
                subprocess.Popen(provider, stderr=others, env=environment),
            ]
            try:
                wait_until("the server", ready.exists, SECONDS)
                wait_until("the provider", lambda: _answers(issuer), SECONDS)
                yield World(fleet, kit, issuer, log)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/.well-known/openid-configuration").is_success
    except httpx.TransportError:
        return False


def sign_in(browser: httpx.Client, world: World, person: str) -> httpx.Response:
    """What the browser shows at the end of a login."""
    form = browser.get(f"{world.kit.servers[0]}/oidc/login")
    assert str(form.url).startswith(f"{world.issuer}/oauth2/authorize?")
    return browser.post(str(form.url), data={"sub": person})


def test_people_sign_in_with_a_browser_and_by_commands(world: World) -> None:
    server = world.kit.servers[0]
    for person, role in (("ada", "operator"), ("eve", "viewer")):
        with world.browser() as browser:
            page = sign_in(browser, world, person)
            assert str(page.url) == f"{server}/"
            assert (page.status_code, len(page.history)) == (200, 2)
            session = browser.get(f"{server}/v1/session").json()
            assert (session["role"], session["person"]) == (role, person)
            link = browser.post(f"{server}/v1/links", json={"label": "the board", "days": 1})
            assert link.status_code == (201 if role == "operator" else 403)
            assert browser.delete(f"{server}/v1/session").status_code == 204
            assert browser.get(f"{server}/v1/session").status_code == 401
    with world.browser() as browser:
        page = sign_in(browser, world, "joe")
        assert page.history[-1].headers["location"] == "/#sign-in=no-role"
        assert browser.get(f"{server}/v1/session").status_code == 401
    by_commands(world)
    log = world.log.read_text(encoding="utf-8")
    assert '"person": "ada"' in log
    assert not any(secret in log for secret in (world.kit.token, "of the client"))


@needs_browser
def test_people_sign_in_and_out_on_the_page(world: World) -> None:
    address = f"{world.kit.servers[0]}/"
    with chromium() as browser:
        pages = {person: Watched(browser).page for person in ("ada", "bob", "eve", "joe")}
        for person, page in pages.items():
            page.goto(address)
            page.locator("#provider").click()
            page.locator("input[name=sub]").fill(person)
            page.get_by_role("button", name="Authorize").click()
            if person == "joe":
                expect(page.locator("#provider")).to_be_visible()
                expect(page.locator("#sign-out")).to_be_hidden()
            else:
                expect(page.locator("#sign-out")).to_be_visible()
        pages["ada"].locator("#sign-out").click()
        expect(pages["ada"].locator("#provider")).to_be_visible()
        for person in ("bob", "eve"):
            pages[person].reload()
            expect(pages[person].locator("#sign-out")).to_be_visible()
        links = "fetch('v1/links', {headers: {'X-Fedcore': '1'}}).then(answer => answer.status)"
        assert {person: pages[person].evaluate(links) for person in pages} == {
            "ada": 401, "bob": 200, "eve": 403, "joe": 401
        }  # fmt: skip


def by_commands(world: World) -> None:
    """A viewer without a token: `fedcore login`, a look, a change that is refused, `fedcore logout`."""
    (world.kit.folder / "token").unlink()
    assert world.command("runs", "list").returncode == 2
    command = [sys.executable, "-m", "fedcore", "login", "--operator", str(world.kit.folder), "--json"]
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        match = re.fullmatch(r"open (\S+/confirm) and enter the code ([0-9a-f]{4})\n", told)
        assert match, told + process.stderr.read()
        assert httpx.post(match[1], params={"user_code": match[2], "sub": "eve"}).is_success
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    known = json.loads(out)
    assert (known["person"], known["role"]) == ("eve", "viewer")
    secret = world.kit.folder / "session"
    assert secret.stat().st_mode & 0o777 == 0o600
    looked = world.command("runs", "list", "--json")
    assert looked.returncode == 0, looked.stderr
    assert world.command("runs", "list", FEDCORE_TOKEN="guess").returncode == 3
    refused = world.command("federation", "link", "--label", "the board", "--days", "1")
    assert (refused.returncode, "not-allowed" in refused.stderr) == (3, True), refused.stderr
    assert world.command("logout").returncode == 0
    assert not secret.exists()
    assert world.command("runs", "list").returncode == 2
