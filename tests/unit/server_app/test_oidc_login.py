"""Signing in at the identity provider: the redirects, cookies and sessions, and what another site cannot do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from support.identity import ISSUER, SETTINGS, Provider, asking
from support.members import Failure
from support.serverside import Site, site

from fedcore.federation import FederationFolder
from fedcore.wire.watch import SessionOut
from server_app.members.login_cookie import LOGIN_SECONDS

PUBLIC = "https://fl.example.org"


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
async def here(federation: FederationFolder, tmp_path: Path, provider: Provider) -> AsyncIterator[Site]:
    async with site(federation, tmp_path, public_url=PUBLIC, oidc=SETTINGS) as made:
        made.application.fastapi.state.sessions.provider = asking(provider)
        yield made


async def begin(here: Site) -> tuple[dict[str, str], str]:
    """The parameters with which the browser comes to the provider, and the cookie that it has then."""
    answer = await here.http.get("/oidc/login", headers={"Host": "evil.example"})
    assert answer.status_code == 302
    where = urlsplit(answer.headers["location"])
    assert f"{where.scheme}://{where.netloc}{where.path}" == f"{ISSUER}/auth"
    (cookie,) = answer.headers.get_list("set-cookie")
    assert {"HttpOnly", "Secure", "SameSite=lax", "Path=/", f"Max-Age={LOGIN_SECONDS}"} <= set(cookie.split("; "))
    here.http.cookies.clear()
    return {name: values[0] for name, values in parse_qs(where.query).items()}, cookie.split(";")[0]


async def come_back(here: Site, state: str, cookie: str, code: str = "code", **other: str) -> httpx.Response:
    answer = await here.http.get(
        "/oidc/callback", params={"code": code, "state": state, **other}, headers={"Cookie": cookie.encode("latin-1")}
    )
    here.http.cookies.clear()
    return answer


async def signed_in(here: Site, provider: Provider, **claims: object) -> str:
    """The cookie of a session of somebody with these claims."""
    asked, cookie = await begin(here)
    provider.codes["code"] = provider.claims(nonce=asked["nonce"], **claims)
    answer = await come_back(here, asked["state"], cookie)
    assert (answer.status_code, answer.headers["location"]) == (302, "/")
    (session,) = [line for line in answer.headers.get_list("set-cookie") if line.startswith(f"{here.cookie}=")]
    assert {"HttpOnly", "Secure", "SameSite=strict", "Max-Age=28800"} <= set(session.split("; "))
    return session.partition("=")[2].partition(";")[0]


async def failure(here: Site, answer: httpx.Response) -> str:
    """The word behind the page's address; nobody is signed in then."""
    assert answer.status_code == 302
    assert not any(line.startswith(f"{here.cookie}=") for line in answer.headers.get_list("set-cookie"))
    address, _, word = answer.headers["location"].partition("#sign-in=")
    assert address == "/"
    return word


async def test_a_person_signs_in_with_state_nonce_and_pkce(here: Site, provider: Provider) -> None:
    asked, _ = await begin(here)
    assert asked["redirect_uri"] == f"{PUBLIC}/oidc/callback", "whatever host the request names"
    assert (asked["client_id"], asked["response_type"], asked["scope"]) == ("fedcore", "code", "openid profile")
    assert asked["code_challenge_method"] == "S256"
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) == 43
    session = await signed_in(here, provider)
    known = SessionOut.model_validate_json((await here.signed_in(session, "GET", "/v1/session")).content)
    assert (known.role, known.person) == ("operator", "ada")
    await here.signed_in(session, "GET", "/v1/links")
    assert (await here.signed_in(session, "DELETE", "/v1/session")).status_code == 204
    assert (await here.http.get("/v1/runs", headers={"Cookie": f"{here.cookie}={session}"})).status_code == 401


async def test_a_viewer_looks_and_changes_nothing(here: Site, provider: Provider) -> None:
    run = (await here.submit()).run
    session = await signed_in(here, provider, roles=["watch"])
    bearer = {"Authorization": f"Bearer {provider.token(roles=['watch'])}"}
    for headers in ({"Cookie": f"{here.cookie}={session}", "X-Fedcore": "1"}, bearer):
        assert (await here.http.get(f"/v1/runs/{run}", headers=headers)).status_code == 200
        for method, path in [
            ("POST", "/v1/runs"),
            ("POST", f"/v1/runs/{run}/cancel"),
            ("POST", f"/v1/runs/{run}/resume"),
            ("POST", "/v1/links"),
            ("PUT", "/v1/roster"),
            ("GET", f"/v1/runs/{run}/model"),
        ]:
            assert (await here.http.request(method, path, headers=headers)).status_code == 403, (method, path)


async def test_a_token_in_the_header_will_do(here: Site, provider: Provider) -> None:
    run = (await here.submit()).run
    headers = {"Authorization": f"Bearer {provider.token()}"}
    assert (await here.http.get("/v1/session", headers=headers)).json()["person"] == "ada"
    assert (await here.http.post(f"/v1/runs/{run}/cancel", headers=headers)).status_code < 300
    assert (await here.http.delete("/v1/session", headers=headers)).status_code == 404
    for wrong in (provider.token(aud="another"), Provider().token(), "a.b.c", "guess"):
        assert (await here.http.get("/v1/runs", headers={"Authorization": f"Bearer {wrong}"})).status_code == 401


async def test_a_token_becomes_a_session(here: Site, provider: Provider) -> None:
    answer = await here.http.post("/v1/session", json={"token": provider.token(aud="fedcore-cli")})
    assert answer.status_code == 204
    assert answer.cookies[here.cookie]
    here.http.cookies.clear()
    with pytest.raises(Failure) as refused:
        await here.sign_in(provider.token(roles=[]))
    assert refused.value.response.status_code == 401


async def test_a_login_that_another_browser_began_ends_here(here: Site, provider: Provider) -> None:
    """Or else a page of another site could sign somebody in as itself."""
    asked, cookie = await begin(here)
    other, other_cookie = await begin(here)
    provider.codes["code"] = provider.claims(nonce=asked["nonce"])
    name, _, value = cookie.partition("=")
    content, _, signature = value.partition(".")
    assert name == f"__Host-{here.cookie}-login"
    for state, presented in [
        (asked["state"], ""),
        (asked["state"], other_cookie),
        (other["state"], cookie),
        ("", cookie),
        (asked["state"], f"{name}={content}."),
        (asked["state"], f"{name}={content}.{signature[:-2]}AA"),
        (asked["state"], f"{name}=é.é"),
    ]:
        answer = await come_back(here, state, presented)
        assert await failure(here, answer) == "login"
    assert provider.bodies == [], "the provider is not asked"
    assert (await come_back(here, asked["state"], cookie)).headers["location"] == "/"


async def test_a_login_takes_ten_minutes_at_most(
    here: Site, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, cookie = await begin(here)
    monkeypatch.setattr("server_app.members.login_cookie.LOGIN_SECONDS", -1)
    late, late_cookie = await begin_late(here)
    assert await failure(here, await come_back(here, late, late_cookie)) == "login"
    monkeypatch.undo()
    provider.codes["code"] = provider.claims(nonce=asked["nonce"])
    assert (await come_back(here, asked["state"], cookie)).headers["location"] == "/"


async def begin_late(here: Site) -> tuple[str, str]:
    answer = await here.http.get("/oidc/login")
    here.http.cookies.clear()
    state = parse_qs(urlsplit(answer.headers["location"]).query)["state"][0]
    return state, answer.headers["set-cookie"].split(";")[0]


@pytest.mark.parametrize(
    ("claims", "word"),
    [({"aud": "another"}, "audience"), ({"roles": []}, "no-role"), ({"iat": 2**33}, "clock"), ({"exp": 1}, "expired")],
)
async def test_the_page_says_why_a_login_failed(
    here: Site, provider: Provider, claims: dict[str, object], word: str
) -> None:
    asked, cookie = await begin(here)
    provider.codes["code"] = provider.claims(**{"nonce": asked["nonce"], **claims})
    assert await failure(here, await come_back(here, asked["state"], cookie)) == word


async def test_a_provider_that_declines_or_is_away_is_named(here: Site, provider: Provider) -> None:
    asked, cookie = await begin(here)
    answer = await come_back(here, asked["state"], cookie, code="", error="access_denied")
    assert await failure(here, answer) == "refused"
    assert await failure(here, await come_back(here, asked["state"], cookie, iss="https://evil.example")) == (
        "other-issuer"
    )
    provider.is_away = True
    assert await failure(here, await come_back(here, asked["state"], cookie)) == "unreachable"


async def test_other_settings_end_the_sessions(here: Site, provider: Provider) -> None:
    operator, viewer = await signed_in(here, provider), await signed_in(here, provider, roles=["watch"])
    link = await here.sign_in(await here.link())
    sessions = here.application.fastapi.state.sessions
    for settings in (replace(SETTINGS, operators=frozenset({"chief"})), None):
        sessions.provider = asking(provider, settings) if settings else None
        for session in (operator, viewer):
            headers = {"Cookie": f"{here.cookie}={session}"}
            assert (await here.http.get("/v1/session", headers=headers)).status_code == 401
        await here.signed_in(link, "GET", "/v1/session")


async def test_a_person_leaves_at_the_provider_too(here: Site) -> None:
    answer = await here.http.get("/oidc/logout")
    where = urlsplit(answer.headers["location"])
    assert where.path.endswith("/logout")
    assert parse_qs(where.query) == {"client_id": ["fedcore"], "post_logout_redirect_uri": [f"{PUBLIC}/"]}


async def test_without_settings_there_is_no_such_way(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path) as here:
        for path in ("/v1/oidc", "/oidc/login", "/oidc/callback", "/oidc/logout"):
            assert (await here.http.get(path)).status_code == 404
        answer = await here.http.get("/v1/runs", headers={"Authorization": f"Bearer {Provider().token()}"})
        assert answer.status_code == 401
