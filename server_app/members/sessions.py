"""Sessions of people who sign in with the operator's token, a read-only link, or at their identity provider.

A session is a random cookie, and a row with its SHA-256; likewise a link. So both outlive a restart and a change of the
server that leads, and somebody who reads the database cannot sign in with it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fedcore.errors import Unauthorized
from fedcore.secagg import Randomness
from fedcore.wire.problems import ProblemKind
from fedcore.wire.watch import LinkIn, Role
from server_app.members.identity_provider import IdentityProvider, Person
from server_app.members.login_cookie import LoginCookies
from server_app.polling import Bell
from server_app.rejection import Rejection
from server_app.storage.store import Store
from server_app.storage.tables import LinkRow, SessionRow

log = logging.getLogger("fedcore.server")

OWN_HEADER: Final = "x-fedcore"
"""Only a script of the page itself can send it: a form of another site has no headers, and its script is not let."""
SESSION_SECONDS: Final = 12 * 3600.0
SESSIONS_EACH: Final = 1000
"""Of one link, or of operators; who signs in beyond that ends the oldest."""
MOST_LINKS: Final = 200
_SECRET_BYTES: Final = 32
_OF_PERSON: Final = "person "
"""Begins the holder of a session that began at an identity provider."""
_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSession:
    """A person who is signed in.

    digest
        SHA-256 of the cookie, or of the token.
    role
        Operator or viewer.
    expires
        Seconds since 1970.
    person
        Who signed in at the identity provider; "" for anybody else.
    by_cookie
        Whether it has a cookie. Without one, each request brings a token of the identity provider.
    """

    digest: bytes = field(repr=False)
    role: Role
    expires: float
    person: str = ""
    by_cookie: bool = True

    @property
    def name(self) -> str:
        """For counting its requests; says nothing about the cookie."""
        return f"session {self.digest[:8].hex()}"


class LoginSessions:
    """Begins, finds and ends sessions, and links by which they begin.

    store
        The database.
    cookie
        The name of a session's cookie.
    token_sha256
        SHA-256 of the operator's token.
    wall
        Seconds since 1970.
    randomness
        For cookies and tokens.
    bell
        Rings when sessions end.
    provider
        The identity provider at which people may sign in; None for none.
    """

    def __init__(
        self,
        store: Store,
        *,
        cookie: str,
        token_sha256: bytes,
        wall: Callable[[], float],
        randomness: Randomness,
        bell: Bell,
        provider: IdentityProvider | None = None,
    ) -> None:
        self._store = store
        self.cookie = cookie
        self.token_sha256 = token_sha256
        self.wall = wall
        self._randomness = randomness
        self._bell = bell
        self.provider = provider
        self.logins = LoginCookies(f"__Host-{cookie}-login", wall, randomness)
        self.ended = 0
        """Grows whenever sessions are ended: who follows a stream looks again then."""

    # --- sessions -------------------------------------------------------------------------------

    def is_operators(self, token: str) -> bool:
        """Whether this is the operator's token."""
        return hmac.compare_digest(digest_of(token), self.token_sha256)

    async def sign_in(self, token: str) -> tuple[str, LoginSession]:
        """A new session and its cookie; raises Unauthorized, alike for all that is no token."""
        now = self.wall()
        if self.is_operators(token):
            return await self._begin(Role.OPERATOR, self._operators, "", now + SESSION_SECONDS)
        if self.provider is not None and is_signed(token):
            return await self.sign_in_person(await self.provider.person_of_token(token))
        link = await self._store.link_of(digest_of(token))
        if link is None or link.expires <= now:
            raise Unauthorized("this is neither the operator's token nor that of a link that is still good")
        return await self._begin(Role.VIEWER, link.id, link.label, min(now + SESSION_SECONDS, link.expires))

    async def sign_in_person(self, person: Person) -> tuple[str, LoginSession]:
        """A new session of somebody whom the identity provider vouches for, and its cookie."""
        assert self.provider is not None  # noqa: S101 - there is no such person without one
        log.info("%s signed in as %s, by %s", person.name, person.role.value, self.provider.settings.issuer)
        holder = self._people + hashlib.sha256(person.subject.encode()).hexdigest()[:16]
        expires = self.wall() + self.provider.settings.session_seconds
        return await self._begin(person.role, holder, person.name, expires)

    async def of_token(self, token: str) -> LoginSession:
        """What a token of the identity provider stands for in a request; raises Unauthorized and Rejection."""
        if self.provider is None or not is_signed(token):
            raise Unauthorized("this address needs the operator's bearer token, or a session (POST /v1/session)")
        person = await self.provider.person_of_token(token)
        return LoginSession(
            digest=digest_of(token), role=person.role, expires=person.expires, person=person.name, by_cookie=False
        )

    async def _begin(self, role: Role, holder: str, label: str, expires: float) -> tuple[str, LoginSession]:
        secret = self._secret()
        digest, now = digest_of(secret), self.wall()
        row = SessionRow(digest=digest, role=role.value, holder=holder, label=label, created=now, expires=expires)
        await self._store.add_session(row, most=SESSIONS_EACH)
        return secret, LoginSession(digest=digest, role=role, expires=expires, person=self._person(row))

    async def find(self, secret: str) -> LoginSession:
        """The session of a cookie; raises Unauthorized."""
        return await self._session_of(digest_of(secret))

    async def _session_of(self, digest: bytes) -> LoginSession:
        row = await self._store.session(digest)
        expired = row is None or row.expires <= self.wall()
        if row is None or expired or not self._counts(row):
            raise Unauthorized("the session has ended; sign in again")
        return LoginSession(digest=digest, role=Role(row.role), expires=row.expires, person=self._person(row))

    def _counts(self, row: SessionRow) -> bool:
        """Whether what a session began with is still good: the operator's token, or the settings of the provider."""
        if row.holder.startswith(_OF_PERSON):
            return bool(self._people) and row.holder.startswith(self._people)
        return row.role != Role.OPERATOR or row.holder == self._operators

    async def holds(self, session: LoginSession) -> bool:
        """Whether a session has not been ended."""
        if not session.by_cookie:
            return session.expires > self.wall()
        try:
            await self._session_of(session.digest)
        except Unauthorized:
            return False
        return True

    def seconds_left(self, session: LoginSession) -> float:
        """Until it runs out."""
        return session.expires - self.wall()

    async def sign_out(self, session: LoginSession) -> None:
        """End a session, and the streams that it has open."""
        await self._store.end_session(session.digest)
        self._note_end()

    # --- links ----------------------------------------------------------------------------------

    async def make_link(self, request: LinkIn) -> tuple[str, LinkRow]:
        """A new link and its token; Rejection if there are too many."""
        now = self.wall()
        if len(await self.links()) >= MOST_LINKS:
            raise Rejection(ProblemKind.BUSY, f"there are {MOST_LINKS} links already; revoke some")
        token = self._secret()
        row = LinkRow(
            id=self._randomness(6).hex(),
            digest=digest_of(token),
            label=request.label,
            created=now,
            expires=now + request.days * _DAY,
        )
        await self._store.add_link(row)
        return token, row

    async def links(self) -> list[LinkRow]:
        """The links that are good, the newest first."""
        return [link for link in await self._store.links() if link.expires > self.wall()]

    async def revoke(self, link: str) -> None:
        """End a link and all sessions that came by it; Rejection if there is none."""
        if not await self._store.drop_link(link):
            raise Rejection(ProblemKind.NOT_FOUND, "there is no such link")
        self._note_end()

    def _note_end(self) -> None:
        self.ended += 1
        self._bell.ring()

    @property
    def _operators(self) -> str:
        """Of the token in use: sessions of one that was replaced are good no more."""
        return f"token {self.token_sha256[:8].hex()}"

    @property
    def _people(self) -> str:
        """Begins the holder of people's sessions; other settings of the provider end those. "" without a provider."""
        return f"{_OF_PERSON}{self.provider.settings.digest} " if self.provider is not None else ""

    def _person(self, row: SessionRow) -> str:
        return row.label if row.holder.startswith(_OF_PERSON) else ""

    def _secret(self) -> str:
        return base64.urlsafe_b64encode(self._randomness(_SECRET_BYTES)).decode("ascii").rstrip("=")


def digest_of(secret: str) -> bytes:
    """What is kept of a secret, and compared."""
    return hashlib.sha256(secret.strip().encode("utf-8")).digest()


def is_signed(token: str) -> bool:
    """Whether this looks like a signed token of an identity provider (JWT); the operator's and links' have no dots."""
    return token.count(".") == 2


def cookie_in(lines: list[tuple[str, str]], cookie: str) -> str:
    """The cookie of this name among header fields, each with its name in small letters; empty if there is none."""
    for name, value in lines:
        if name == "cookie":
            for part in value.split(";"):
                key, _, secret = part.strip().partition("=")
                if key == cookie:
                    return secret
    return ""
