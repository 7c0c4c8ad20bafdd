"""People at the page: signing in and out, read-only links, what each may do, and what another site may not."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute, _IncludedRouter
from support.members import Failure
from support.serverside import Site, hold_pace, site, until

from fedcore.federation import FederationFolder, Policy, provision
from fedcore.federation.files import read_certificate
from fedcore.federation.kits.certificates import hosts_of
from fedcore.system.concurrency import end
from fedcore.wire.watch import LinkIn, LinkOut, LinksOut, SessionOut
from server_app.http.audience import VIEWERS_MAY, Audience
from server_app.http.connection_limiter import CONNECTION_KEY
from server_app.members.sessions import SESSION_SECONDS, digest_of


async def problem(work: Any) -> tuple[int, str]:
    with pytest.raises(Failure) as refused:
        await work
    return refused.value.response.status_code, refused.value.problem.kind


async def test_an_operator_signs_in_and_out(here: Site) -> None:
    answer = await here.http.post("/v1/session", json={"token": here.operator_kit.token})
    assert answer.status_code == 204
    (cookie,) = answer.headers.get_list("set-cookie")
    assert {"HttpOnly", "Secure", "SameSite=strict", "Path=/", "Max-Age=43200"} <= set(cookie.split("; "))
    here.http.cookies.clear()
    secret = answer.cookies[here.cookie]
    known = SessionOut.model_validate_json((await here.signed_in(secret, "GET", "/v1/session")).content)
    assert (known.role, known.federation) == ("operator", "testing")
    assert known.expires is not None
    await here.signed_in(secret, "GET", "/v1/links")
    assert (await here.signed_in(secret, "DELETE", "/v1/session")).status_code == 204
    assert await problem(here.signed_in(secret, "GET", "/v1/session")) == (401, "unauthorized")


async def test_who_has_no_token_hears_so_alike(here: Site) -> None:
    assert await problem(here.sign_in("guess")) == (401, "unauthorized")
    assert await problem(here.signed_in("guess", "GET", "/v1/session")) == (401, "unauthorized")
    assert (await here.http.get("/v1/session")).status_code == 401


async def test_a_link_lets_people_look_until_it_is_revoked(here: Site) -> None:
    made = LinkOut.model_validate_json(
        (await here.operator("POST", "/v1/links", LinkIn(label="the board", days=7))).content
    )
    assert made.url == f"https://server/#view={made.token}", "behind #, which is sent to no server"
    viewer = await here.sign_in(made.token)
    known = SessionOut.model_validate_json((await here.signed_in(viewer, "GET", "/v1/session")).content)
    assert known.role == "viewer"
    (listed,) = LinksOut.model_validate_json((await here.operator("GET", "/v1/links")).content).links
    assert (listed.id, listed.label) == (made.id, "the board")
    await here.operator("DELETE", f"/v1/links/{made.id}")
    assert await problem(here.signed_in(viewer, "GET", "/v1/runs")) == (401, "unauthorized")
    assert await problem(here.sign_in(made.token)) == (401, "unauthorized")
    assert await problem(here.operator("DELETE", f"/v1/links/{made.id}")) == (404, "not-found")


def routes_of(here: Site) -> Iterator[APIRoute]:
    """All of ours; FastAPI keeps the routers that it includes as they are."""
    for included in here.application.fastapi.routes:
        routes = included.original_router.routes if isinstance(included, _IncludedRouter) else [included]
        yield from (route for route in routes if isinstance(route, APIRoute))


async def test_a_viewer_may_what_the_table_says_and_nothing_else(here: Site) -> None:
    """Every route of the application, whatever is added to it."""
    viewer, run = await here.sign_in(await here.link()), (await here.submit()).run
    seen = set()
    for route in routes_of(here):
        audience = getattr(route, "audience", None)
        path = re.sub(r"\{[^}]*\}", "1", route.path.replace("{run}", run))
        for method in route.methods:
            may = (method, route.path) in VIEWERS_MAY
            seen.add((method, route.path))
            if audience is Audience.EVERYBODY or (method, route.path) == ("DELETE", "/v1/session"):
                continue
            query = "?seconds=0" if route.path.endswith("/live") else ""
            try:
                answered = (await here.signed_in(viewer, method, path + query)).status_code
            except Failure as refused:
                answered = refused.response.status_code
                kind = refused.problem.kind
            if may:
                assert answered in (200, 404), (method, path, answered)
            elif audience is Audience.CLIENTS:
                assert (answered, kind) == (401, "unauthorized"), (method, path)
            else:
                assert (answered, kind) == (403, "not-allowed"), (method, path)
    assert seen >= VIEWERS_MAY
    assert (await here.signed_in(viewer, "DELETE", "/v1/session")).status_code == 204


async def test_an_operator_s_session_may_what_the_token_may(here: Site) -> None:
    operator, run = await here.sign_in(), (await here.submit()).run
    await here.signed_in(operator, "GET", f"/v1/runs/{run}/files")
    await here.signed_in(operator, "POST", f"/v1/runs/{run}/cancel")


@pytest.mark.parametrize(
    ("host", "public", "expected"),
    [
        ("127.0.0.1:7000", "", "https://127.0.0.1:7000"),
        ("evil.example", "", "https://127.0.0.1:8443"),
        ("evil.example:80", "https://fl.example.org", "https://fl.example.org"),
        ("localhost", "https://fl.example.org", "https://fl.example.org"),
    ],
)
async def test_a_link_leads_to_the_server_whatever_the_request_says(
    federation: FederationFolder, tmp_path: Path, host: str, public: str, expected: str
) -> None:
    """A reader of the link would give its token to the other machine."""
    certificate = federation.server / "server.crt"
    assert hosts_of(read_certificate(certificate)) == ["127.0.0.1"]
    limits = {"certificate": certificate, "public_url": public, "url": "https://0.0.0.0:8443"}
    async with site(federation, tmp_path, **limits) as here:
        body = LinkIn(label="the board", days=7).model_dump(mode="json")
        headers = {"Authorization": f"Bearer {here.operator_kit.token}", "Host": host}
        made = LinkOut.model_validate_json((await here.http.post("/v1/links", json=body, headers=headers)).content)
    assert made.url == f"{expected}/#view={made.token}"


async def test_no_answer_is_for_a_cache_or_of_another_type(here: Site) -> None:
    answers = [
        await here.http.get("/v1/session"),
        await here.http.get("/nowhere"),
        await here.operator("GET", "/v1/runs"),
        await here.http.get("/healthz"),
    ]
    for answer in answers:
        assert answer.headers.get_list("cache-control") == ["no-store"]
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    page = await here.http.get("/")
    assert len(page.headers.get_list("cache-control")) == len(page.headers.get_list("x-content-type-options")) == 1


@pytest.mark.parametrize("role", ["operator", "viewer"])
async def test_a_form_of_another_site_changes_nothing(here: Site, role: str) -> None:
    cookie = await here.sign_in(await here.link() if role == "viewer" else "")
    asked = here.signed_in(cookie, "DELETE", "/v1/session", own=False)
    assert await problem(asked) == (403, "cross-site")
    await here.signed_in(cookie, "GET", "/v1/session", own=False)
    signing_in = here.http.post(
        "/v1/session", json={"token": here.operator_kit.token}, headers={"Cookie": f"{here.cookie}={cookie}"}
    )
    assert (await signing_in).status_code == 403


async def test_signing_in_takes_json_only(here: Site) -> None:
    """A form of another site could sign somebody in as somebody else."""
    body = '{"token": "' + here.operator_kit.token + '"}'
    answer = await here.http.post("/v1/session", content=body, headers={"Content-Type": "text/plain"})
    assert answer.status_code == 422


async def test_a_session_is_worth_nothing_to_clients_routes(here: Site) -> None:
    cookie = await here.sign_in()
    assert await problem(here.signed_in(cookie, "POST", "/v1/task")) == (401, "unauthorized")
    assert await problem(here.signed_in(cookie, "POST", "/v1/heartbeat")) == (401, "unauthorized")


async def test_a_wrong_token_beside_a_good_cookie_is_wrong(here: Site) -> None:
    headers = {"Cookie": f"{here.cookie}={await here.sign_in()}", "Authorization": "Bearer wrong"}
    assert (await here.http.get("/v1/runs", headers=headers)).status_code == 401


async def test_one_browser_has_a_session_with_each_federation_of_a_host(here: Site, tmp_path: Path) -> None:
    """Its cookies go to every port of the host."""
    other = provision(tmp_path / "other", name="testing", clients=2, now=datetime.now(UTC), policy=Policy.own(2))
    jar = httpx.Cookies()
    async with site(other, tmp_path / "data") as there:
        for one in (here, there):
            answer = await one.http.post(
                "/v1/session", json={"token": one.operator_kit.token}, headers={"Cookie": _sent(jar), "X-Fedcore": "1"}
            )
            assert answer.status_code == 204
            jar.update(answer.cookies)
        for one in (here, there):
            one.http.cookies.clear()
            assert (await one.http.get("/v1/session", headers={"Cookie": _sent(jar)})).status_code == 200


def _sent(jar: httpx.Cookies) -> str:
    return "; ".join(f"{name}={value}" for name, value in jar.items())


async def test_no_secret_is_in_the_database(here: Site) -> None:
    token = await here.link()
    cookies = [await here.sign_in(token), await here.sign_in()]
    with closing(sqlite3.connect(here.services.settings.database_file)) as database:
        text = "\n".join(database.iterdump())
        digests = {row[0] for row in database.execute("SELECT digest FROM sessions UNION SELECT digest FROM links")}
    assert not any(secret in text for secret in (token, *cookies, here.operator_kit.token))
    assert digests == {hashlib.sha256(secret.encode()).digest() for secret in (token, *cookies)}


async def test_sessions_and_links_outlive_a_restart(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path) as made:
        token = await made.link()
        cookie, viewer = await made.sign_in(), await made.sign_in(token)
    async with site(federation, tmp_path) as made:
        await made.signed_in(cookie, "GET", "/v1/links")
        await made.signed_in(viewer, "GET", "/v1/runs")
        await made.sign_in(token)


async def test_sessions_and_links_run_out(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = here.application.fastapi.state.sessions
    token = await here.link(days=1)
    cookie, viewer = await here.sign_in(), await here.sign_in(token)
    wall = here.services.wall
    monkeypatch.setattr(sessions, "wall", lambda: wall() + SESSION_SECONDS + 1)
    for ended in (cookie, viewer):
        assert await problem(here.signed_in(ended, "GET", "/v1/session")) == (401, "unauthorized")
    late = await here.sign_in(token)
    monkeypatch.setattr(sessions, "wall", lambda: wall() + 24 * 3600)
    assert await problem(here.signed_in(late, "GET", "/v1/session")) == (401, "unauthorized"), "no longer than its link"
    assert await problem(here.sign_in(token)) == (401, "unauthorized")
    assert LinksOut.model_validate_json((await here.operator("GET", "/v1/links")).content).links == []


async def test_a_new_token_of_the_operator_ends_the_sessions_of_the_old(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie, viewer = await here.sign_in(), await here.sign_in(await here.link())
    monkeypatch.setattr(here.application.fastapi.state.sessions, "token_sha256", digest_of("another"))
    assert await problem(here.signed_in(cookie, "GET", "/v1/session")) == (401, "unauthorized")
    await here.signed_in(viewer, "GET", "/v1/session")


async def test_the_oldest_session_of_a_link_makes_room(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.members.sessions.SESSIONS_EACH", 2)
    operator, token = await here.sign_in(), await here.link()
    first, second, third = [await here.sign_in(token) for _ in range(3)]
    assert await problem(here.signed_in(first, "GET", "/v1/session")) == (401, "unauthorized")
    await asyncio.gather(*(here.signed_in(cookie, "GET", "/v1/session") for cookie in (operator, second, third)))


async def test_links_are_counted(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.members.sessions.MOST_LINKS", 1)
    await here.link()
    assert await problem(here.link()) == (429, "busy")


@pytest.mark.parametrize("asked", [{"days": 0}, {"days": 366}, {"label": " "}, {"label": "a" * 101}])
async def test_a_link_says_for_whom_and_for_how_long(here: Site, asked: dict[str, Any]) -> None:
    body = {"label": "the board", "days": 7, **asked}
    headers = {"Authorization": f"Bearer {here.operator_kit.token}"}
    assert (await here.http.post("/v1/links", json=body, headers=headers)).status_code == 422


async def test_the_token_itself_is_no_session(here: Site) -> None:
    known = SessionOut.model_validate_json((await here.operator("GET", "/v1/session")).content)
    assert (known.role, known.expires) == ("operator", None)
    assert await problem(here.operator("DELETE", "/v1/session")) == (404, "not-found")


async def test_guesses_are_paced_like_wrong_signatures(federation: FederationFolder, tmp_path: Path) -> None:
    """A wrong token counts twice, as an open request and as a wrong one; so does a cookie that is none."""
    async with site(federation, tmp_path, strangers_a_second=0.1) as here:
        hold_pace(here)
        cookie = await here.sign_in()
        guess = asyncio.create_task(here.http.post("/v1/session", json={"token": "guess"}))
        for _ in range(3):
            await here.signed_in(cookie, "GET", "/v1/session")
        assert not guess.done(), "who is signed in does not wait behind who guesses"
        await end(guess)


async def test_viewers_have_a_pace_of_their_own(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path, strangers_a_second=0.3) as here:
        hold_pace(here)
        one, other = [await here.sign_in(await here.link()) for _ in range(2)]
        waiting = [asyncio.create_task(here.signed_in(one, "GET", "/v1/session")) for _ in range(9)]
        await here.signed_in(other, "GET", "/v1/session")
        await here.operator("GET", "/v1/session")
        await until(lambda: sum(task.done() for task in waiting) == 3)
        await end(*waiting)


class Connection:
    """A connection at the door: as whom it was known, and how often a request on it had shown nothing."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self.doubts = 0

    def mark_authenticated(self, who: str) -> None:
        self.known.append(who)

    def mark_suspicious(self) -> bool:
        self.doubts += 1
        return True


async def over(connection: Connection, here: Site, cookie: str, **asked: Any) -> httpx.Response:
    """One request over a connection."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scope[CONNECTION_KEY] = connection
        await here.application.asgi(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=application), base_url="http://server") as http:
        return await http.request(headers={"Cookie": f"{here.cookie}={cookie}"} if cookie else {}, **asked)


async def test_viewers_take_no_member_s_place(here: Site) -> None:
    operator, viewer = await here.sign_in(), await here.sign_in(await here.link())
    for cookie, known in ((operator, ["operators"]), (viewer, [])):
        connection = Connection()
        assert (await over(connection, here, cookie, method="GET", url="/v1/session")).status_code == 200
        assert (connection.known, connection.doubts) == (known, 0)


async def test_a_connection_that_guesses_is_closed(here: Site) -> None:
    connection = Connection()
    answer = await over(connection, here, "", method="POST", url="/v1/session", json={"token": "guess"})
    assert (answer.status_code, answer.headers["connection"], connection.doubts) == (401, "close", 1)
    answer = await over(connection, here, "guess", method="GET", url="/v1/session")
    assert (answer.status_code, answer.headers["connection"], connection.doubts) == (401, "close", 2)
