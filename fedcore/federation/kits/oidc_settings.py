"""The table [oidc] of server.toml: people sign in at the identity provider of their institution (OpenID Connect)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from fedcore.errors import UnknownKey
from fedcore.federation.files import broken, read_secret
from fedcore.system.assignments import type_name

TABLE: Final = "oidc"
_KEYS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("issuer", "client-id", "client-secret-file", "device-client-id", "issuer-ca"), str),
    **dict.fromkeys(("audience", "scope", "role-claim"), str),
    **dict.fromkeys(("operators", "viewers"), list),
    "session-hours": int,
}
_LONGEST_SESSION: Final = 24
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """An identity provider, and which of its users are operators or viewers here.

    issuer: its address, as its discovery document states it.
    client_id: the name under which it knows this server.
    client_secret: "" for a public client.
    secret_file: where that secret is; None for a public client.
    device_client_id: the name under which it knows `fedcore login`, which has no secret.
    audience: what tokens for this server may name as their audience, besides the names of the two clients.
    scope: what the server asks for at a login.
    role_claim: claim of a token that holds a user's roles: its name, or a path with dots.
    operators: values of that claim that make an operator.
    viewers: values that make a viewer.
    ca_file: authorities for its certificate; None for those of the system.
    session_seconds: how long a session lasts.
    """

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    secret_file: Path | None = None
    device_client_id: str
    audience: str
    scope: str = "openid profile"
    role_claim: str = "roles"
    operators: frozenset[str]
    viewers: frozenset[str]
    ca_file: Path | None = None
    session_seconds: float = 8 * 3600.0

    @property
    def audiences(self) -> list[str]:
        """What a token may name as its audience."""
        return list(dict.fromkeys((self.client_id, self.device_client_id, self.audience)))

    @property
    def digest(self) -> str:
        """Of all that decides who is what here: 16 hexadecimal digits."""
        parts = [self.issuer, self.client_id, self.device_client_id, self.audience, self.role_claim]
        parts += [*sorted(self.operators), "", *sorted(self.viewers)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @classmethod
    def of_table(cls, path: Path, table: Mapping[str, Any]) -> Self:
        """Read the table [oidc] of the file `path`; raises KitError or UnknownKey."""
        _check_types(path, table)
        for key in ("issuer", "client-id"):
            if not table.get(key):
                raise broken(path, f"oidc.{key} is missing", "add it", check="missing-key")
        issuer = table["issuer"]
        if not is_safe_address(issuer):
            raise broken(
                path,
                "oidc.issuer must look like https://login.example.org/realms/ours",
                "mend the line",
                check="issuer",
            )
        roles = {key: _roles(path, key, table.get(key, [])) for key in ("operators", "viewers")}
        if not any(roles.values()):
            what = 'for example operators = ["fedcore-operator"]'
            raise broken(path, "oidc names neither operators nor viewers, so nobody could sign in", what, check="roles")
        hours = table.get("session-hours", 8)
        if not 1 <= hours <= _LONGEST_SESSION:
            raise broken(path, f"oidc.session-hours must be from 1 to {_LONGEST_SESSION}", "mend the line")
        scope = table.get("scope", "openid profile")
        if "openid" not in scope.split():
            raise broken(path, "oidc.scope must contain openid", "mend the line", check="scope")
        secret, ca = table.get("client-secret-file", ""), table.get("issuer-ca", "")
        return cls(
            issuer=issuer,
            client_id=table["client-id"],
            client_secret=_secret(path.parent / secret) if secret else "",
            secret_file=path.parent / secret if secret else None,
            device_client_id=table.get("device-client-id") or table["client-id"],
            audience=table.get("audience") or table["client-id"],
            scope=scope,
            role_claim=table.get("role-claim") or "roles",
            operators=roles["operators"],
            viewers=roles["viewers"],
            ca_file=path.parent / ca if ca else None,
            session_seconds=hours * 3600.0,
        )


def is_safe_address(url: object) -> bool:
    """Whether this is an address with TLS, or one of this machine."""
    if not isinstance(url, str) or not re.fullmatch(r"https?://[^\s?#@\\]+", url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.scheme == "https" or parts.hostname in _LOOPBACK)
    except ValueError:
        return False


def _check_types(path: Path, table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if key not in _KEYS:
            raise UnknownKey(key, _KEYS, f"[oidc] of {path}")
        if type(value) is not _KEYS[key]:
            raise broken(path, f"oidc.{key} must be {type_name(_KEYS[key])}", f"mend the line of {key}", check="type")


def _roles(path: Path, key: str, values: list[Any]) -> frozenset[str]:
    if not all(isinstance(value, str) and value for value in values):
        raise broken(path, f"oidc.{key} must list names of roles", f"mend the line of {key}", check="type")
    return frozenset(values)


def _secret(path: Path) -> str:
    try:
        secret = read_secret(path).decode("utf-8").strip()
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise broken(path, "not the secret of a client", "copy it from the identity provider", check="secret")
    return secret
