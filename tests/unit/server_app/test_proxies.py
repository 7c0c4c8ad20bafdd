"""Requests behind a proxy that is trusted, and past it: whose address counts, and who is told where a file lies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from server_app.http.guard import SCOPE_KEY
from server_app.http.proxies import BehindProxies
from server_app.routes.files import OCTETS, OctetsResponse
from server_app.settings import ServerSettings

PROXY, OTHER = "10.0.0.2", "10.0.0.3"


@pytest.fixture
def heard() -> list[str]:
    """The addresses from which requests came."""
    return []


@pytest.fixture
def app(tmp_path: Path, heard: list[str]) -> BehindProxies:
    """Hands out one file; nginx has the address PROXY."""
    settings = ServerSettings(data_dir=tmp_path, accel_location="/fedcore-files/")
    (tmp_path / "model").write_bytes(b"12345")

    async def hand_out(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(scope["client"][0])
        scope["app"] = SimpleNamespace(state=SimpleNamespace(services=SimpleNamespace(settings=settings)))
        scope[SCOPE_KEY] = SimpleNamespace(down=0)
        await OctetsResponse(tmp_path / "model", media_type=OCTETS)(scope, receive, send)

    return BehindProxies(hand_out, [PROXY])


@pytest.mark.parametrize(
    ("sender", "address", "body", "named"),
    [
        (PROXY, "192.0.2.7", b"", "/fedcore-files/model"),
        (f"::ffff:{PROXY}", "192.0.2.7", b"", "/fedcore-files/model"),
        (OTHER, OTHER, b"12345", None),
    ],
    ids=["by the proxy", "by the proxy, to a socket for IPv4 and IPv6", "past the proxy"],
)
async def test_a_file_is_named_to_the_proxy_and_sent_to_anybody_else(
    app: BehindProxies, heard: list[str], sender: str, address: str, body: bytes, named: str | None
) -> None:
    """Whoever came past nginx would take an empty answer for a model that was not the announced one."""
    transport = httpx.ASGITransport(app, client=(sender, 5))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="https://server") as client:
        answer = await client.get("/", headers={"X-Forwarded-For": "192.0.2.7"})
    assert heard == [address]
    assert answer.content == body
    assert answer.headers.get("X-Accel-Redirect") == named
