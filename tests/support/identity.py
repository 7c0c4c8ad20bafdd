"""An identity provider in this process: its documents, its key, and tokens of any content."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import httpx2
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from fedcore.federation.kits.oidc_settings import OidcSettings
from server_app.members.identity_provider import IdentityProvider

ISSUER = "https://login.example.org/realms/ours"
SETTINGS = OidcSettings(
    issuer=ISSUER,
    client_id="fedcore",
    device_client_id="fedcore-cli",
    audience="fedcore-api",
    operators=frozenset({"operate"}),
    viewers=frozenset({"watch"}),
)


class Provider:
    """It answers requests without a socket.

    requests: paths that were fetched. codes: what each code stands for, the claims of an ID token.
    """

    def __init__(self) -> None:
        self.key = ECKey.generate_key("P-256", {"kid": "first"})
        self.document: dict[str, Any] = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/auth",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/keys",
            "end_session_endpoint": f"{ISSUER}/logout",
        }
        self.requests: list[str] = []
        self.codes: dict[str, dict[str, Any]] = {}
        self.bodies: list[dict[str, list[str]]] = []
        self.is_away = False

    def claims(self, **other: Any) -> dict[str, Any]:
        """Claims of a good token, but for `other`; None takes one out."""
        now = int(time.time())
        good = {"iss": ISSUER, "aud": "fedcore", "sub": "1234", "preferred_username": "ada", "iat": now}
        made = {**good, "exp": now + 300, "roles": ["operate"], **other}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, **other: Any) -> str:
        """A token with such claims."""
        return self.sign(self.claims(**other))

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        return jwt.encode({"alg": "ES256", "kid": self.key.kid, **header}, dict(claims), self.key)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if self.is_away:
            raise httpx2.ConnectError("nobody listens")
        path = request.url.path.removeprefix("/realms/ours")
        self.requests.append(path)
        match path:
            case "/.well-known/openid-configuration":
                return httpx2.Response(200, json=self.document)
            case "/keys":
                return httpx2.Response(200, json=KeySet([self.key]).as_dict())
            case "/token":
                return self._exchange(request)
        return httpx2.Response(404, text="nothing here")

    def _exchange(self, request: httpx2.Request) -> httpx2.Response:
        body = parse_qs(request.content.decode())
        self.bodies.append(body)
        claims = self.codes.pop(body["code"][0], None)
        if claims is None:
            return httpx2.Response(400, json={"error": "invalid_grant"})
        answer = {"token_type": "Bearer", "access_token": "opaque", "id_token": self.sign(claims)}
        return httpx2.Response(200, content=json.dumps(answer), headers={"Content-Type": "application/json"})


def asking(
    provider: Provider, settings: OidcSettings = SETTINGS, wall: Callable[[], float] = time.time
) -> IdentityProvider:
    """What asks this provider."""
    return IdentityProvider(settings, wall, httpx2.MockTransport(provider))
