"""The identity provider of an institution (OpenID Connect Core 1.0): who somebody is, and which role that gives here.

Two kinds of proof come from it: a code, after a login in a browser (authorization code flow with PKCE, RFC 7636), and a
token that somebody already has (a JWT, RFC 7519), such as an ID token of the device flow. Nothing is asked of the
provider before somebody signs in.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlencode

from fedcore.errors import ConfigurationError, Unauthorized
from fedcore.federation.kits.oidc_settings import OidcSettings, is_safe_address
from fedcore.system.network.proxies import way_out
from fedcore.wire.problems import ProblemKind
from fedcore.wire.watch import LONGEST_TOKEN, Role
from server_app.rejection import Rejection

if TYPE_CHECKING:
    import httpx2
    from authlib.integrations.httpx_client import AsyncOAuth2Client
    from joserfc.jwk import KeySet
    from joserfc.jwt import Token

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
"""Signatures with a public key; never `none`, nor one with a secret that the client knows too."""
LEEWAY_SECONDS: Final = 60
_FRESH_SECONDS: Final = 3600.0
"""How long the provider's addresses and keys are good."""
_AGAIN_SECONDS: Final = 60.0
"""At least so long lies between two fetches of keys because a token names one that is not known."""
_PAUSE_SECONDS: Final = 10.0
"""After the provider did not answer, it is left alone so long."""
_TIMEOUT: Final = 10.0
_MOST_BYTES: Final = 1 << 20
_LONGEST_NAME: Final = 100
_DISCOVERY: Final = "/.well-known/openid-configuration"
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_OTHER_TYPES: Final = ("logout+jwt", "secevent+jwt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody whom the identity provider vouches for.

    subject: the provider's unchanging name of the account.
    name: for people: `preferred_username`, e-mail address, or subject.
    role: here.
    expires: of the token, in seconds since 1970.
    """

    subject: str
    name: str
    role: Role
    expires: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Provider:
    """What the provider says about itself, and its keys."""

    metadata: Mapping[str, Any]
    keys: KeySet
    since: float


class IdentityProvider:
    """Asks the identity provider, and checks what it signs.

    Errors are `Unauthorized` for a login that does not count, and `Rejection` of the kind `identity-provider` if the
    provider does not answer as it should; their `check` is a short name that the page has words for.

    settings
        From server.toml.
    wall
        Seconds since 1970.
    transport
        In place of sockets.

    Raises:
        ConfigurationError: the extra `oidc` is not installed, the file of authorities cannot be read, or the
            environment names a proxy of another kind than HTTP.
    """

    def __init__(
        self,
        settings: OidcSettings,
        wall: Callable[[], float],
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        try:
            import authlib.integrations.httpx_client
            import joserfc  # noqa: F401
        except ImportError:
            raise ConfigurationError(
                "server.toml has [oidc], which needs Authlib: pip install 'fedcore[oidc]'"
            ) from None
        self.settings = settings
        self._wall = wall
        self._transport = transport
        self._proxy = way_out(settings.issuer) if transport is None else None
        self._oauth = authlib.integrations.httpx_client
        try:
            self._tls = ssl.create_default_context(cafile=settings.ca_file)
        except OSError as error:
            raise ConfigurationError(
                f"oidc.issuer-ca {settings.ca_file} cannot be read ({error.strerror}); name a file of certificates"
            ) from None
        self._known: _Provider | None = None
        self._fetching = asyncio.Lock()
        self._failure: Rejection | None = None
        self._failed_at = 0.0

    async def authorization_url(self, *, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """The provider's page for a login, which then leads to `redirect_uri`."""
        known = await self._provider()
        async with self._client(known.metadata, redirect_uri) as client:
            url, _ = client.create_authorization_url(
                known.metadata["authorization_endpoint"], state=state, nonce=nonce, code_verifier=verifier
            )
        return str(url)

    async def person_of_code(self, code: str, *, issuer: str, redirect_uri: str, nonce: str, verifier: str) -> Person:
        """Who signed in, by the code that the browser brought.

        Args:
            code: of the provider.
            issuer: who gave it, as the browser says (RFC 9207); "" if it does not say.
            redirect_uri: as in `authorization_url`.
            nonce: as there.
            verifier: as there.
        """
        known = await self._provider()
        names_itself = known.metadata.get("authorization_response_iss_parameter_supported") is True
        if (issuer or names_itself) and issuer != self.settings.issuer:
            raise Unauthorized("the login comes from another identity provider; begin again", check="other-issuer")
        answer = await self._exchange(known, code, redirect_uri, verifier)
        id_token = answer.get("id_token")
        if not isinstance(id_token, str):
            raise Rejection(
                ProblemKind.IDENTITY_PROVIDER,
                "the identity provider sent no ID token; it has to allow the scope openid for this client",
                check="no-id-token",
            )
        token = await self._verified(id_token)
        from authlib.oidc.core import CodeIDToken
        from joserfc.errors import JoseError

        expected = {"client_id": self.settings.client_id, "nonce": nonce, "access_token": answer.get("access_token")}
        try:
            claims = CodeIDToken(token.claims, token.header, params=expected)
            claims.validate(int(self._wall()), LEEWAY_SECONDS)
        except (JoseError, TypeError, ValueError):
            raise Unauthorized("the ID token is not of this login; begin again", check="other-login") from None
        return self._person(token.claims)

    async def person_of_token(self, token: str) -> Person:
        """Who has a token for this server."""
        return self._person((await self._verified(token)).claims)

    async def logout_url(self, back: str) -> str:
        """The provider's page for signing out there, which leads back to `back`; that itself if it has none."""
        address = (await self._provider()).metadata.get("end_session_endpoint")
        if not is_safe_address(address):
            return back
        query = urlencode({"client_id": self.settings.client_id, "post_logout_redirect_uri": back})
        return f"{address}?{query}"

    # --- tokens ---------------------------------------------------------------------------------

    async def _verified(self, text: str) -> Token:
        """A token that the provider signed for this server, and whose time has come and is not over."""
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        if len(text) > LONGEST_TOKEN:
            raise Unauthorized("the token is too long", check="not-a-token")
        known = await self._provider()
        try:
            try:
                token = jwt.decode(text, known.keys, algorithms=ALGORITHMS)
            except InvalidKeyIdError:  # signed with a new key, perhaps
                known = await self._provider(newer_than=known)
                token = jwt.decode(text, known.keys, algorithms=ALGORITHMS)
        except (JoseError, ValueError, TypeError, RecursionError):
            raise Unauthorized(
                f"the token is not one that {self.settings.issuer} signed; sign in there again", check="not-signed"
            ) from None
        self._check_claims(token)
        return token

    def _check_claims(self, token: Token) -> None:
        from joserfc.errors import ClaimError, JoseError
        from joserfc.jwt import JWTClaimsRegistry

        settings, now = self.settings, int(self._wall())
        if str(token.header.get("typ", "")).lower() in _OTHER_TYPES:
            raise Unauthorized("the token is no proof of a login", check="not-a-token")
        registry = JWTClaimsRegistry(
            now=now,
            leeway=LEEWAY_SECONDS,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "values": settings.audiences},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            registry.validate(token.claims)
        except ClaimError as error:
            self._refuse_claim(str(error.claim), token.claims, now)
        except (JoseError, TypeError, ValueError):
            raise Unauthorized("the token does not have the form of one", check="not-a-token") from None

    def _refuse_claim(self, claim: str, claims: Mapping[str, Any], now: int) -> NoReturn:
        """Say what is wrong with a claim, and what to do."""
        value = claims.get(claim)
        if claim in ("iat", "nbf") and isinstance(value, int):
            raise Unauthorized(
                f"the token is from the future, by {value - now} s; set the clock of this server, or the identity "
                "provider's",
                check="clock",
            )
        if claim == "exp" and isinstance(value, int):
            raise Unauthorized(
                f"the token expired {now - value} s ago; sign in again, and if that does not help, set the clock of "
                "this server, or the identity provider's",
                check="expired",
            )
        if claim == "aud":
            raise Unauthorized(
                f"the token is for none of the audiences {', '.join(self.settings.audiences)}; have the "
                "identity provider put one into aud, or name its audience in [oidc] of server.toml",
                check="audience",
            )
        if claim == "iss":
            raise Unauthorized(
                f"the token is not of {self.settings.issuer}; sign in there, or mend issuer in server.toml",
                check="other-issuer",
            )
        raise Unauthorized(f"the token lacks a {claim}", check="not-a-token")

    def _person(self, claims: Mapping[str, Any]) -> Person:
        settings = self.settings
        values = roles_in(claims, settings.role_claim)
        if values & settings.operators:
            role = Role.OPERATOR
        elif values & settings.viewers:
            role = Role.VIEWER
        else:
            raise Unauthorized(
                f"this account is neither operator nor viewer here: its claim {settings.role_claim!r} has none of the "
                "values in [oidc] of server.toml; have the identity provider's administrator give it such a role, "
                "and put roles into the ID token",
                check="no-role",
            )
        names = (claims.get(key) for key in ("preferred_username", "email", "sub"))
        name = next((one for one in names if isinstance(one, str) and one.isprintable() and one), "unnamed")
        return Person(subject=claims["sub"], name=name[:_LONGEST_NAME], role=role, expires=float(claims["exp"]))

    # --- the provider ---------------------------------------------------------------------------

    def _client(self, metadata: Mapping[str, Any], redirect_uri: str = "") -> AsyncOAuth2Client:
        secret = self.settings.client_secret or None
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        by_post = "client_secret_post" in methods and "client_secret_basic" not in methods
        with_secret = "client_secret_post" if by_post else "client_secret_basic"
        return self._oauth.AsyncOAuth2Client(
            client_id=self.settings.client_id,
            client_secret=secret,
            token_endpoint_auth_method=with_secret if secret else "none",
            code_challenge_method="S256",
            scope=self.settings.scope,
            redirect_uri=redirect_uri or None,
            verify=self._tls,
            timeout=_TIMEOUT,
            trust_env=False,
            proxy=self._proxy,
            follow_redirects=False,
            transport=self._transport,
        )

    async def _exchange(self, known: _Provider, code: str, redirect_uri: str, verifier: str) -> Mapping[str, Any]:
        import httpx2
        from authlib.integrations.base_client import OAuthError

        async with self._client(known.metadata, redirect_uri) as client:
            try:
                answer: Mapping[str, Any] = await client.fetch_token(
                    known.metadata["token_endpoint"],
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=verifier,
                )
            except OAuthError as error:
                self._refuse_code(str(error.error))
            except (httpx2.HTTPError, ValueError) as error:
                raise self._silent(error) from error
        return answer

    def _refuse_code(self, error: str) -> NoReturn:
        if error in ("invalid_client", "unauthorized_client"):
            raise Rejection(
                ProblemKind.IDENTITY_PROVIDER,
                "the identity provider does not know this server as a client; check client-id and client-secret-file "
                "in [oidc] of server.toml",
                check="client",
            )
        word = error if re.fullmatch(r"[a-z_]{1,40}", error) else "an error"
        raise Unauthorized(f"the identity provider refused the login ({word}); begin again", check="refused")

    async def _provider(self, newer_than: _Provider | None = None) -> _Provider:
        """Its addresses and keys, fetched if they are old, or no newer than others that did not do."""
        async with self._fetching:
            known, now = self._known, self._wall()
            patience = _FRESH_SECONDS if newer_than is None or newer_than is not known else _AGAIN_SECONDS
            if known is None or not 0 <= now - known.since < patience:
                if self._failure is not None and 0 <= now - self._failed_at < _PAUSE_SECONDS:
                    raise self._failure  # or each stranger with a made-up token would have others wait behind it
                try:
                    known = self._known = await self._fetch(now)
                except Rejection as error:
                    self._failure, self._failed_at = error, now
                    raise
                self._failure = None
        return known

    async def _fetch(self, now: float) -> _Provider:
        import httpx2
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        issuer = self.settings.issuer
        async with self._client({}) as client:
            try:
                metadata = await _json(client, issuer.rstrip("/") + _DISCOVERY)
                if metadata.get("issuer") != issuer:
                    raise self._wrong("its own document names another issuer; write that one into server.toml")
                if wrong := [name for name in _ENDPOINTS if not is_safe_address(metadata.get(name))]:
                    raise self._wrong(f"its document has no {wrong[0]} with https")
                document: Any = await _json(client, metadata["jwks_uri"])
                keys = KeySet.import_key_set(document)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise self._silent(error) from error
            except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise self._wrong("it answers with something else than OpenID Connect's documents") from None
        return _Provider(metadata=metadata, keys=keys, since=now)

    def _silent(self, error: Exception) -> Rejection:
        return Rejection(
            ProblemKind.IDENTITY_PROVIDER,
            f"the identity provider {self.settings.issuer} does not answer this server ({type(error).__name__}); check "
            "the address, the network and issuer-ca, or sign in with the operator's token meanwhile",
            check="unreachable",
        )

    def _wrong(self, why: str) -> Rejection:
        return Rejection(
            ProblemKind.IDENTITY_PROVIDER, f"the identity provider {self.settings.issuer}: {why}", check="issuer"
        )


def roles_in(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """The values of a claim: by its very name, or by a path with dots, such as `realm_access.roles`.

    Names on the path may have dots, too, as a client's in Keycloak's `resource_access.fl.example.org.roles`. An e-mail
    address that nobody verified is none.
    """
    if claim == "email" and claims.get("email_verified") is not True:
        return frozenset()
    value = _at(claims, claim.split("."))
    values = value if isinstance(value, list) else [value]
    return frozenset(one for one in values if isinstance(one, str))


def _at(value: Any, names: Sequence[str]) -> Any:
    """What lies at a path whose names may have been cut at their dots; None for nothing."""
    if not names or not isinstance(value, Mapping):
        return None if names else value
    ends = range(len(names), 0, -1)
    below = (_at(value.get(".".join(names[:end])), names[end:]) for end in ends)
    return next((one for one in below if one is not None), None)


async def _json(client: AsyncOAuth2Client, url: str) -> dict[str, Any]:
    """A JSON object; ValueError for anything else."""
    async with client.stream("GET", url, withhold_token=True) as answer:
        answer.raise_for_status()
        content = b""
        async for chunk in answer.aiter_bytes():
            content += chunk
            if len(content) > _MOST_BYTES:
                raise ValueError("too long")
    import json

    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value
