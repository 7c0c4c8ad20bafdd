"""Every address of the schema with odd values in its path, its query and its fields: refused by a problem document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from support.serverside import SETTINGS, TINY, Site

from fedcore.errors import UsageError
from fedcore.flower.app import AppBundle
from fedcore.wire.operator import RunIn
from server_app.http.problems import MEDIA_TYPE

ODD = (
    "%00", "..", "%2e%2e", "%2F", "%ed%a0%80", "%ff", "%", "x" * 5000, "%d9%a3", "%0a", "'\"<>",
    "-1", "1.5", "nan", str(2**31), str(2**63 - 1), str(2**63), "9" * 400,
)  # fmt: skip
KNOWN = {"exchange": "1", "index": "0", "dealer": "2", "path": "a"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation of the schema. who: client, operator or health."""

    method: str
    path: str
    who: str
    query: tuple[dict[str, Any], ...]

    def odd_targets(self, run: str) -> Iterator[str]:
        """Addresses with one odd value each, and some that are written oddly."""
        names = re.findall(r"{(\w+)}", self.path)
        values = {name: KNOWN.get(name, run) for name in names}
        usual = self.path.format(**values)
        for odd in ODD:
            yield from (self.path.format(**{**values, name: odd}) for name in names)
            for one in self.query:
                needed = [f"{other['name']}=1" for other in self.query if other.get("required") and other is not one]
                yield usual + "?" + "&".join([one["name"] + "=" + odd, *needed])
        yield from (f"{usual}/", f"/{usual}", f"{usual}/../x", f"{usual}?%00=%ff&=&&%")


def routes(here: Site) -> Iterator[Route]:
    for path, operations in here.application.fastapi.openapi()["paths"].items():
        for method, operation in operations.items():
            query = tuple(
                one for one in operation.get("parameters", ()) if one["in"] == "query" and one["name"] != "wait"
            )
            yield Route(method=method.upper(), path=path, who=operation["tags"][0], query=query)


async def ask(here: Site, route: Route, target: str, body: bytes, **fields: str) -> httpx.Response | None:
    """The answer; None where the client's own signature cannot say such an address."""
    url = httpx.URL("https://server").copy_with(raw_path=target.encode("ascii"))
    headers = {"Content-Type": "application/json", **fields}
    if route.who == "operator":
        headers["Authorization"] = f"Bearer {here.operator_kit.token}"
    elif route.who == "client":
        try:
            headers |= here.members[1].signed(route.method, target, body)
        except UsageError:
            return None
    lines = [(name, value.encode("latin-1")) for name, value in (headers | fields).items()]
    return await here.http.request(route.method, url, headers=lines, content=body)


def assert_is_answered(answer: httpx.Response | None, what: str) -> None:
    if answer is not None and answer.status_code >= 400:
        assert answer.status_code < 500, f"{what}: {answer.status_code} {answer.text}"
        assert answer.headers["content-type"] == MEDIA_TYPE, what


async def test_no_address_makes_the_server_fail(here: Site) -> None:
    run, app = await here.begin()
    for route in routes(here):
        body = b"{}" if route.method in ("POST", "PUT") else b""
        for target in route.odd_targets(run):
            assert_is_answered(await ask(here, route, target, body), f"{route.method} {target[:200]}")
    app.fail("enough")


@pytest.mark.parametrize(
    "name", ["Content-Type", "Content-Length", "Authorization", "Signature", "Content-Digest", "ETag"]
)
async def test_no_field_makes_the_server_fail(here: Site, name: str) -> None:
    run, app = await here.begin()
    for route in routes(here):
        target = route.path.format(**{name: KNOWN.get(name, run) for name in re.findall(r"{(\w+)}", route.path)})
        for odd in ("", "\x01", "a" * 200, "-1", "9" * 30, "nan", "multipart/form-data; boundary=", "Bearer \xff"):
            if name == "Content-Length" and not odd.isdigit():
                continue  # HTTP's parser has refused these
            assert_is_answered(
                await ask(here, route, target, b"", **{name: odd}), f"{route.method} {target} {name} {odd}"
            )
    app.fail("enough")


@pytest.mark.parametrize(
    "path", ["a\0b", "../x", "/etc/x", "a//b", "x" * 300, "x/" * 300 + "y", "\ud800", "", ".", "a\\b", "\n", "é" * 200]
)
async def test_odd_paths_in_a_bundle_are_refused(here: Site, path: str) -> None:
    bundle = AppBundle.from_folder(TINY)
    asked = RunIn(app_sha256=bundle.sha256, files=dict(bundle.files), run_config={}, settings=SETTINGS)
    body = json.loads(asked.model_dump_json())
    body["files"][path] = "aGk="
    answer = await here.http.post(
        "/v1/runs", content=json.dumps(body), headers={"Authorization": f"Bearer {here.operator_kit.token}"}
    )
    assert (answer.status_code, answer.headers["content-type"]) == (422, MEDIA_TYPE)


@pytest.mark.parametrize(
    "body", [b"[" * 50_000, b'{"app_sha256":' + b"9" * 5000 + b"}", b"\xff\xfe", b'"\\ud800"', b"null"]
)
async def test_odd_bodies_are_refused(here: Site, body: bytes) -> None:
    for route in routes(here):
        if route.method in ("POST", "PUT") and "{" not in route.path:
            answer = await ask(here, route, route.path, body)
            assert answer is not None
            assert 400 <= answer.status_code < 500, f"{route.path}: {answer.text}"
            assert answer.headers["content-type"] == MEDIA_TYPE
