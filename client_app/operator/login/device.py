"""The device flow (RFC 8628): a person confirms a code in any browser, and this command gets their ID token."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx

from client_app.output import clean
from fedcore.errors import ConfigurationError, PeerError, ServerUnreachable, Unauthorized
from fedcore.federation.kits.oidc_settings import is_safe_address
from fedcore.wire.watch import OidcOut

GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
LONGEST_WAIT: Final = 1800.0
_INTERVAL: Final = 5.0
_SLOWER: Final = 5.0


def id_token_of(
    provider: OidcOut,
    http: httpx.Client,
    say: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """The ID token of the person who confirms the code that `say` gets.

    Raises ConfigurationError if the provider does not know this flow, Unauthorized if the person declines or takes too
    long, ServerUnreachable or PeerError if the provider does not answer, or not as it should.

    Args:
        provider: as the federation's server names it.
        http: trusts the authorities of the system.
        say: gets lines for a person.
        sleep: waits for so many seconds.
        clock: monotonic seconds.
    """
    metadata = _metadata(provider.issuer, http)
    answer = _post(
        http, metadata["device_authorization_endpoint"], {"client_id": provider.client_id, "scope": provider.scope}
    )
    if "error" in answer:
        raise ConfigurationError(
            f"the identity provider refuses the device flow ({clean(str(answer['error']))[:40]}); its administrator "
            f"has to allow it for the client {clean(provider.client_id)}, which has no secret; or set FEDCORE_TOKEN",
            check="no-device-flow",
        )
    code, address = answer.get("device_code"), answer.get("verification_uri")
    if not isinstance(code, str) or not is_safe_address(address):
        raise PeerError("the identity provider's answer names no code or no page")
    say(f"open {clean(str(address))} and enter the code {clean(str(answer.get('user_code')))[:40]}")
    interval = _seconds(answer.get("interval"), _INTERVAL)
    until = clock() + _seconds(answer.get("expires_in"), LONGEST_WAIT)
    body = {"grant_type": GRANT, "device_code": code, "client_id": provider.client_id}
    while clock() < until:
        sleep(interval)
        answer = _post(http, metadata["token_endpoint"], body)
        match answer.get("error"):
            case None if isinstance(answer.get("id_token"), str):
                return str(answer["id_token"])
            case "authorization_pending":
                pass
            case "slow_down":
                interval += _SLOWER
            case "access_denied":
                raise Unauthorized("the login was declined", check="refused")
            case "expired_token":
                break
            case error:
                word = clean(str(error))[:40] if error else "no ID token: ask for the scope openid"
                raise PeerError(f"the identity provider gave no token ({word})", check="no-id-token")
    raise Unauthorized("nobody confirmed the code in time; run `fedcore login` again", check="expired")


def _metadata(issuer: str, http: httpx.Client) -> Mapping[str, Any]:
    if not is_safe_address(issuer):
        raise PeerError("the server names an identity provider without https", check="issuer")
    metadata = _read(http, "GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if metadata.get("issuer") != issuer:
        raise PeerError(f"{clean(issuer)} calls itself by another name; the server's owner has to mend issuer")
    if not metadata.get("device_authorization_endpoint"):
        raise ConfigurationError(
            f"{clean(issuer)} does not offer the device flow; set FEDCORE_TOKEN to a token for this server, or sign in "
            "at the page",
            check="no-device-flow",
        )
    for name in ("device_authorization_endpoint", "token_endpoint"):
        if not is_safe_address(metadata.get(name)):
            raise PeerError(f"{clean(issuer)} names no {name} with https", check="issuer")
    return metadata


def _post(http: httpx.Client, url: str, body: Mapping[str, str]) -> Mapping[str, Any]:
    return _read(http, "POST", url, data=body)


def _read(http: httpx.Client, method: str, url: str, **arguments: Any) -> Mapping[str, Any]:
    try:
        answer = http.request(method, url, **arguments)
        value = answer.json()
    except httpx.HTTPError as error:
        raise ServerUnreachable(
            f"the identity provider does not answer at {clean(url)} ({clean(str(error)) or type(error).__name__}); if "
            "its certificate is of an authority of your own, name that in the variable SSL_CERT_FILE"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise PeerError(f"{clean(url)} answers with something else than JSON; is issuer right in server.toml?")
    return value


def _seconds(value: object, default: float) -> float:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return min(float(value), LONGEST_WAIT)
    return default
