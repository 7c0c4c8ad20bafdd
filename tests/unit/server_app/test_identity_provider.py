"""Tokens of an identity provider: which count, for what role, and what a person learns about those that do not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from joserfc.jwk import ECKey
from support.identity import ISSUER, SETTINGS, Provider, asking
from support.refusing_proxy import refusing_proxy

from fedcore.errors import Unauthorized
from fedcore.wire.problems import ProblemKind
from fedcore.wire.watch import Role
from server_app.members.identity_provider import IdentityProvider, roles_in
from server_app.rejection import Rejection


async def refusal(provider: Provider, token: str) -> str:
    with pytest.raises(Unauthorized) as refused:
        await asking(provider).person_of_token(token)
    return refused.value.check


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({}, Role.OPERATOR),
        ({"roles": ["watch"]}, Role.VIEWER),
        ({"roles": ["watch", "operate"]}, Role.OPERATOR),
        ({"roles": "watch"}, Role.VIEWER),
        ({"aud": ["account", "fedcore-api"]}, Role.OPERATOR),
        ({"aud": "fedcore-cli"}, Role.OPERATOR),
    ],
)
async def test_a_claim_gives_a_role(claims: dict[str, Any], role: Role) -> None:
    provider = Provider()
    person = await asking(provider).person_of_token(provider.token(**claims))
    assert (person.subject, person.name, person.role) == ("1234", "ada", role)


@pytest.mark.parametrize(
    ("claims", "check"),
    [
        ({"roles": []}, "no-role"),
        ({"roles": None}, "no-role"),
        ({"roles": {"operate": True}}, "no-role"),
        ({"roles": "operate watch"}, "no-role"),
        ({"aud": "another"}, "audience"),
        ({"aud": None}, "audience"),
        ({"iss": "https://login.example.org/realms/other"}, "other-issuer"),
        ({"iss": None}, "other-issuer"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "not-a-token"),
        ({"exp": float("nan")}, "not-a-token"),
        ({"nbf": int(time.time()) + 3600}, "clock"),
        ({"iat": int(time.time()) + 3600}, "clock"),
        ({"sub": None}, "not-a-token"),
    ],
)
async def test_a_token_that_does_not_count_says_why(claims: dict[str, Any], check: str) -> None:
    provider = Provider()
    assert await refusal(provider, provider.token(**claims)) == check


async def test_nobody_else_signs() -> None:
    provider = Provider()
    stranger = Provider()
    assert await refusal(provider, stranger.token()) == "not-signed"
    stranger.key = ECKey.generate_key("P-256", {"kid": "second"})
    assert await refusal(provider, stranger.token()) == "not-signed"
    head, body, _ = provider.token().split(".")
    assert await refusal(provider, f"{head}.{body}.") == "not-signed"
    for text in ("a.b.c", "..", f"{head}.{body}.{'A' * 20_000}"):
        assert await refusal(provider, text) in ("not-signed", "not-a-token")


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_no_algorithm_without_a_private_key_counts(algorithm: str) -> None:
    """`HS256` with the public key as the secret is what a confused verifier would take."""
    provider = Provider()

    def encoded(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    head = encoded(json.dumps({"alg": algorithm, "kid": "first"}).encode())
    signed = f"{head}.{encoded(json.dumps(provider.claims()).encode())}"
    public = provider.key.as_pem(private=False)
    signature = encoded(hmac.digest(public, signed.encode(), hashlib.sha256)) if algorithm != "none" else ""
    assert await refusal(provider, f"{signed}.{signature}") == "not-signed"


async def test_a_logout_token_is_no_login() -> None:
    provider = Provider()
    assert await refusal(provider, provider.sign(provider.claims(), typ="logout+jwt")) == "not-a-token"


async def test_a_new_key_is_fetched_and_strangers_do_not_make_it_fetch_more() -> None:
    provider, now = Provider(), [time.time()]
    asks = asking(provider, wall=lambda: now[0])
    await asks.person_of_token(provider.token())
    provider.key = ECKey.generate_key("P-256", {"kid": "second"})
    for _ in range(3):
        with pytest.raises(Unauthorized):
            await asks.person_of_token(provider.token())
    assert provider.requests.count("/keys") == 1
    now[0] += 61.0
    await asks.person_of_token(provider.token())
    assert provider.requests.count("/keys") == 2


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"issuer": f"{ISSUER}/"}, "issuer"),
        ({"token_endpoint": "http://login.example.org/token"}, "issuer"),
        ({"jwks_uri": None}, "issuer"),
        ({"jwks_uri": f"{ISSUER}/nowhere"}, "unreachable"),
    ],
)
async def test_a_provider_that_is_another_is_not_asked(change: dict[str, Any], check: str) -> None:
    provider = Provider()
    provider.document |= change
    with pytest.raises(Rejection) as refused:
        await asking(provider).person_of_token(provider.token())
    assert (refused.value.kind, refused.value.check) == (ProblemKind.IDENTITY_PROVIDER, check)


async def test_a_provider_that_is_away_is_named_and_left_alone_for_a_while() -> None:
    provider, now = Provider(), [time.time()]
    asks = asking(provider, wall=lambda: now[0])
    provider.is_away = True
    with pytest.raises(Rejection) as refused:
        await asks.person_of_token(provider.token())
    assert refused.value.check == "unreachable"
    provider.is_away = False
    with pytest.raises(Rejection):
        await asks.person_of_token(provider.token())
    assert provider.requests == []
    now[0] += 11.0
    assert (await asks.person_of_token(provider.token())).role is Role.OPERATOR


@pytest.mark.parametrize(
    ("claims", "issuer", "check"),
    [
        ({"nonce": "another"}, ISSUER, "other-login"),
        ({"nonce": None}, ISSUER, "other-login"),
        ({"azp": "another"}, ISSUER, "other-login"),
        ({"aud": ["fedcore", "another"]}, ISSUER, "other-login"),
        ({"at_hash": "AAAA"}, ISSUER, "other-login"),
        ({}, "https://evil.example", "other-issuer"),
        ({"aud": "another"}, ISSUER, "audience"),
    ],
)
async def test_a_code_gives_a_token_of_this_very_login(claims: dict[str, Any], issuer: str, check: str) -> None:
    provider = Provider()
    provider.codes = {"good": provider.claims(nonce="n"), "bad": provider.claims(**{"nonce": "n", **claims})}
    login: dict[str, Any] = {"redirect_uri": "https://fl/oidc/callback", "nonce": "n", "verifier": "v" * 43}
    assert (await asking(provider).person_of_code("good", issuer=ISSUER, **login)).role is Role.OPERATOR
    assert provider.bodies[0]["code_verifier"] == ["v" * 43]
    with pytest.raises(Unauthorized) as refused:
        await asking(provider).person_of_code("bad", issuer=issuer, **login)
    assert refused.value.check == check
    with pytest.raises(Unauthorized) as spent:
        await asking(provider).person_of_code("good", issuer="", **login)
    assert spent.value.check == "refused"


@pytest.mark.parametrize(
    ("claims", "claim", "roles"),
    [
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", {"a"}),
        ({"resource_access": {"fl.example.org": {"roles": ["a"]}}}, "resource_access.fl.example.org.roles", {"a"}),
        ({"resource_access": {"fl": {"roles": ["a"]}}}, "resource_access.fl.example.org.roles", set()),
        ({"a.b": None, "a": {"b": "c"}}, "a.b", {"c"}),
        ({}, ".".join("a" * 40), set()),
        ({"https://example.org/roles": ["a"]}, "https://example.org/roles", {"a"}),
        ({"realm_access": ["a"]}, "realm_access.roles", set()),
        ({"roles": ["a", 1, None]}, "roles", {"a"}),
        ({"email": "a@example.org"}, "email", set()),
        ({"email": "a@example.org", "email_verified": "true"}, "email", set()),
        ({"email": "a@example.org", "email_verified": True}, "email", {"a@example.org"}),
    ],
)
def test_roles_of_a_claim(claims: dict[str, Any], claim: str, roles: set[str]) -> None:
    assert roles_in(claims, claim) == roles


def test_the_secret_is_in_no_text() -> None:
    assert "hidden" not in repr(replace(SETTINGS, client_secret="hidden"))


async def test_a_provider_outside_is_reached_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing_proxy(monkeypatch) as requests:
        settings = replace(SETTINGS, issuer="https://login.example.org/realms/ours")
        with pytest.raises(Rejection):
            await IdentityProvider(settings, time.time).person_of_token("a.b.c")
    assert requests == ["CONNECT login.example.org:443 HTTP/1.1"]
