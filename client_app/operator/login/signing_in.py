"""Begins and ends the session of an operator's kit, at the federation's server."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx

from client_app.http.errors import refusal, tls_context, unanswered
from client_app.operator.client import OperatorClient
from client_app.operator.login.device import id_token_of
from client_app.output import clean
from fedcore.errors import ConfigurationError, PeerError, Refused
from fedcore.federation.kits.kit_values import session_of
from fedcore.federation.kits.kits import SESSION_FILE, OperatorKit
from fedcore.system.files import write_file
from fedcore.system.network.proxies import way_out
from fedcore.wire.watch import OidcOut, SessionOut, session_cookie

_SECONDS = 30.0


def sign_in(folder: Path, say: Callable[[str], None]) -> SessionOut:
    """Sign in with the device flow, and keep the session in the kit; `say` gets what the person has to do."""
    kit = OperatorKit.load(folder, needs_token=False)
    for url in kit.servers[:-1]:  # the one that leads, if several answer
        with contextlib.suppress(Refused, PeerError):
            return _sign_in(kit, url, say)
    return _sign_in(kit, kit.servers[-1], say)


def _sign_in(kit: OperatorKit, url: str, say: Callable[[str], None]) -> SessionOut:
    with _http(url, tls_context(kit.ca_file), base_url=url) as server:
        provider = OidcOut.model_validate_json(_ask(server, url, "GET", "/v1/oidc").content)
        with _http(provider.issuer, tls_context(None)) as outside:
            token = id_token_of(provider, outside, say)
        secret = _ask(server, url, "POST", "/v1/session", {"token": token}).cookies.get(session_cookie(kit.authority))
    if not secret:
        raise PeerError("the server began no session")
    known_kit = replace(kit, servers=(url,), token="", session=secret)
    with OperatorClient(known_kit) as client:
        known = client.whoami()
    write_file(kit.folder / SESSION_FILE, f"{secret}\n", mode=0o600)
    return known.model_copy(update={"person": clean(known.person), "federation": clean(known.federation)})


def sign_out(folder: Path) -> bool:
    """End the kit's session, here and at the server; False if there is none."""
    kit = OperatorKit.load(folder, needs_token=False)
    secret = session_of(kit.folder / SESSION_FILE)
    if not secret:
        return False
    try:
        with contextlib.suppress(PeerError), OperatorClient(replace(kit, token="", session=secret)) as client:
            client.sign_out()  # one that has ended already is refused
    finally:
        (kit.folder / SESSION_FILE).unlink(missing_ok=True)
    return True


def _http(url: str, tls: ssl.SSLContext, base_url: str = "") -> httpx.Client:
    """For requests to this address, through the proxy that the environment names for it."""
    return httpx.Client(base_url=base_url, verify=tls, timeout=_SECONDS, trust_env=False, proxy=way_out(url))


def _ask(server: httpx.Client, url: str, method: str, path: str, body: dict[str, str] | None = None) -> httpx.Response:
    try:
        answer = server.request(method, path, json=body)
    except httpx.TransportError as error:
        raise unanswered([url], error) from error
    if answer.is_success:
        return answer
    problem = refusal(answer.status_code, answer.content, of="this login")
    if isinstance(problem, Refused) and problem.kind == "not-found" and path == "/v1/oidc":
        raise ConfigurationError(
            f"the server at {url} knows no identity provider: its owner adds [oidc] to server.toml; the file token of "
            "the operator's kit works without",
            check="no-oidc",
        )
    raise problem
