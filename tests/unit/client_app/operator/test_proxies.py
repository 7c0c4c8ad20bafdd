"""Operators' commands at a site whose way out is a proxy, and behind one of the server's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.refusing_proxy import refusing_proxy

from client_app.http.errors import refusal
from client_app.operator.client import OperatorClient
from client_app.operator.login.signing_in import sign_in
from fedcore.errors import Refused, ServerUnreachable
from fedcore.federation import FederationFolder, OperatorKit


def list_runs(folder: Path) -> None:
    with OperatorClient(OperatorKit.load(folder), connect_seconds=0.0) as client:
        client.list_runs(limit=1)


@pytest.mark.parametrize("ask", [list_runs, lambda folder: sign_in(folder, print)])
def test_they_go_through_it(
    federation: FederationFolder, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], None]
) -> None:
    settings = federation.operator / "operator.toml"
    text = settings.read_text().replace("127.0.0.1:8443", "fl.example.org:8443")
    assert "fl.example.org" in text
    settings.write_text(text)
    with refusing_proxy(monkeypatch) as requests:
        with pytest.raises(ServerUnreachable):
            ask(federation.operator)
        assert requests == ["CONNECT fl.example.org:8443 HTTP/1.1"]
        settings.write_text(text.replace("fl.example.org", "127.0.0.1"))
        with pytest.raises(ServerUnreachable):
            ask(federation.operator)
        assert len(requests) == 1, "no proxy leads to the loopback"


def test_the_limit_of_a_proxy_in_front_of_the_server_is_named() -> None:
    refused = refusal(413, b"<html>Request Entity Too Large</html>", of="the token")
    assert isinstance(refused, Refused)
    assert "client_max_body_size" in refused.detail
