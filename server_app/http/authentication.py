"""Who sends a request: a client by its signature, an operator by a bearer token, or nobody.

Both are checked on the request's head alone, before a byte of the body is read. The reasons are
short and say nothing about which part of a secret was right.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.types import Scope

from fedcore.errors import Unauthorized
from fedcore.http_signing import NonceCache, verify_headers
from fedcore.wire import ProblemKind
from server_app.http.audience import Audience, Audiences
from server_app.http.door import KNOWN_KEY
from server_app.http.problems import Rejection
from server_app.rosters import Rosters

KEY_PREFIX: Final = "client-"
MAX_AGE_SECONDS: Final = 300
"""How old a signed request may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCaller:
    """A request that a member of the roster signed; its body must have this SHA-256 (32 bytes)."""

    client_id: int
    content_sha256: bytes


@dataclass(slots=True, kw_only=True)
class Authenticator:
    """Checks the head of a request.

    audiences: who may call which route. rosters: whose members sign with which key. token_sha256: SHA-256 of
    the operator's token. clock: seconds since 1970.
    """

    audiences: Audiences
    rosters: Rosters
    token_sha256: bytes = field(repr=False)
    clock: Callable[[], float]
    nonces: NonceCache

    def __call__(self, scope: Scope) -> ClientCaller | None:
        """The client that sends a request, None for others who may; raises Unauthorized, or Rejection (not-found)."""
        audience = self.audiences.of(scope)
        if audience is Audience.EVERYBODY:
            return None
        headers = Headers(scope)
        caller = None
        if audience is Audience.OPERATORS:
            self._check_token(headers)
        else:
            caller = self._verify_client(scope, headers)
        if (on_known := scope.get(KNOWN_KEY)) is not None:
            on_known(f"{KEY_PREFIX}{caller.client_id}" if caller else audience.value)
        return caller

    def _check_token(self, headers: Headers) -> None:
        values = [value for name, value in headers.items() if name == "authorization"]
        scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        digest = hashlib.sha256(token.strip().encode("utf-8")).digest()
        if scheme.lower() != "bearer" or not hmac.compare_digest(digest, self.token_sha256):
            raise Unauthorized("this address needs the operator's bearer token")

    def _verify_client(self, scope: Scope, headers: Headers) -> ClientCaller:
        query = scope.get("query_string", b"").decode("latin-1")
        raw = scope.get("raw_path") or scope["path"].encode("utf-8")
        target = raw.decode("latin-1") + (f"?{query}" if query else "")
        verified = verify_headers(
            scope["method"],
            target,
            headers,
            resolve_key=self._key,
            now=int(self.clock()),
            seen=self.nonces,
            max_age_s=MAX_AGE_SECONDS,
        )
        caller = ClientCaller(client_id=client_of(verified.key_id), content_sha256=verified.content_sha256)
        self._refuse_others(caller.client_id)
        return caller

    def _key(self, key_id: str) -> bytes:
        """The key of a member; of those who were revoked and those who come with the next roster, too.

        They are refused all the same, but only who has the key gets to hear why.
        """
        client = client_of(key_id)
        current = self.rosters.current
        for keys in (current.keys, self.rosters.newest.keys):
            if client in keys:
                return keys[client]
        former = next((member for member in current.revoked if member.id == client), None)
        if former is None:
            raise KeyError(key_id)
        return former.public_key

    def _refuse_others(self, client: int) -> None:
        current = self.rosters.current
        if client in current.keys:
            return
        if client in current.names:
            raise Rejection(
                ProblemKind.REVOKED,
                f"{current.names[client]} was revoked from the federation {current.federation}, by its authority",
            )
        raise Rejection(ProblemKind.BUSY, "the roster that has this client comes into use when the open exchange ends")


class Headers(Mapping[str, str]):
    """A request's header fields; `items` gives each line, so that a repeated field is seen."""

    def __init__(self, scope: Scope) -> None:
        self._lines = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        self._by_name: dict[str, str] = dict(self._lines)

    def __getitem__(self, name: str) -> str:
        return self._by_name[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def items(self) -> list[tuple[str, str]]:  # type: ignore[override]
        """Every line, repeated names included."""
        return self._lines


def client_of(key_id: str) -> int:
    """The client id in a key's name, "client-<id>"; KeyError where it is none."""
    number = key_id.removeprefix(KEY_PREFIX)
    if number == key_id or not number.isascii() or not number.isdecimal() or number[0] == "0":
        raise KeyError(key_id)
    return int(number[:12])
