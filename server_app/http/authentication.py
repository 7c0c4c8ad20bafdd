"""Authentication of requests: clients by signature, operators by bearer token, people by session.

All are checked on the request's head alone, before a byte of the body is read. Errors are short and do not say which
part of a secret was right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.types import Scope

from fedcore.errors import PeerError, Unauthorized, WrongClock
from fedcore.monitoring.formatting import the_federation
from fedcore.wire.problems import ProblemKind
from fedcore.wire.signing import NonceCache, verify_headers
from fedcore.wire.watch import Role
from server_app.http.audience import Audience, Audiences
from server_app.members.rosters import Rosters
from server_app.members.sessions import OWN_HEADER, LoginSession, LoginSessions, cookie_in
from server_app.members.traffic import KEY_PREFIX, OPERATORS
from server_app.rejection import Rejection

MAX_AGE_SECONDS: Final = 300
"""How old a signed request may be."""
SAFE: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCaller:
    """A request that a member of the roster signed; its body must have this SHA-256 (32 bytes)."""

    client_id: int
    content_sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The sender of a request.

    who: the name that this server gives it, empty for a stranger.
    client: the member that signed the request.
    known_as: the name under which its connection is counted; empty for strangers and for viewers, who must not take a
        member's place.
    session: of a person who is signed in.
    """

    who: str
    client: ClientCaller | None = None
    known_as: str = ""
    session: LoginSession | None = None


@dataclass(slots=True, kw_only=True)
class Authenticator:
    """Checks the head of a request.

    audiences
        Who may call which route.
    rosters
        Rosters with the members and their keys.
    sessions
        Login sessions, and the operator's token.
    clock
        Seconds since 1970.
    nonces
        Nonces of the requests that came so far.
    on_time
        Gets a client's number, and by how many seconds the time that it signed is ahead.
    """

    audiences: Audiences
    rosters: Rosters
    sessions: LoginSessions = field(repr=False)
    clock: Callable[[], float]
    nonces: NonceCache
    on_time: Callable[[int, float], None] = lambda client, seconds: None

    async def __call__(self, scope: Scope) -> Sender:
        """Who sends a request; raises Unauthorized, or Rejection."""
        audience = self.audiences.of(scope)
        if audience is Audience.EVERYBODY:
            return Sender(who="")
        headers = Headers(scope)
        if audience is not Audience.CLIENTS:
            return await self._person(scope, headers, audience)
        client = self._verify_client(scope, headers)
        who = f"{KEY_PREFIX}{client.client_id}"
        return Sender(who=who, known_as=who, client=client)

    def member(self, scope: Scope) -> int | None:
        """The member that signed a request for clients; None for any other request."""
        try:
            if self.audiences.of(scope) is Audience.CLIENTS:
                return self._verify_client(scope, Headers(scope)).client_id
        except (PeerError, Unauthorized):
            pass
        return None

    async def _person(self, scope: Scope, headers: Headers, audience: Audience) -> Sender:
        secret = cookie_in(headers.items(), self.sessions.cookie)
        if not secret or "authorization" in headers:
            token = _bearer_token(headers)
            if self.sessions.is_operators(token):
                return Sender(who=OPERATORS, known_as=OPERATORS)
            session = await self.sessions.of_token(token)
        else:
            session = await self.sessions.find(secret)
        if session.role is Role.VIEWER and audience is not Audience.VIEWERS:
            raise Rejection(
                ProblemKind.NOT_ALLOWED,
                "a viewer may not do this; sign in as an operator, or with the operator's token",
            )
        if session.by_cookie and scope["method"] not in SAFE and headers.get(OWN_HEADER) != "1":
            raise Rejection(
                ProblemKind.CROSS_SITE, "with a session, what changes something needs the header X-Fedcore: 1"
            )
        return Sender(who=session.name, known_as=OPERATORS if session.role is Role.OPERATOR else "", session=session)

    def _verify_client(self, scope: Scope, headers: Headers) -> ClientCaller:
        query = scope.get("query_string", b"").decode("latin-1")
        raw = scope.get("raw_path") or scope["path"].encode("utf-8")
        target = raw.decode("latin-1") + (f"?{query}" if query else "")
        now = int(self.clock())
        try:
            verified = verify_headers(
                scope["method"],
                target,
                headers,
                resolve_key=self._key,
                now=now,
                nonces=self.nonces,
                max_age_s=MAX_AGE_SECONDS,
            )
        except WrongClock as error:
            self.on_time(client_of(error.key_id), error.seconds)
            raise
        caller = ClientCaller(client_id=client_of(verified.key_id), content_sha256=verified.content_sha256)
        self.on_time(caller.client_id, verified.created - now)
        self._refuse_others(caller.client_id)
        return caller

    def _key(self, key_id: str) -> bytes:
        """The key of a member; of those who were revoked and those who come with the next roster, too.

        They are refused anyway, but only who has the key gets to hear why.
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
                f"{current.names[client]} was revoked from {the_federation(current.federation)}, by its authority",
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


def _bearer_token(headers: Headers) -> str:
    """The one bearer token of a request; "" if there is none."""
    values = [value for name, value in headers.items() if name == "authorization"]
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token if scheme.lower() == "bearer" else ""


def client_of(key_id: str) -> int:
    """The client id in a key's name, "client-<id>"; KeyError if it is none."""
    number = key_id.removeprefix(KEY_PREFIX)
    if number == key_id or not number.isascii() or not number.isdecimal() or number[0] == "0":
        raise KeyError(key_id)
    return int(number[:12])
