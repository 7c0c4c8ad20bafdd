"""The cookie of a login that is under way at the identity provider.

It holds what the callback has to match: state, nonce and the verifier of PKCE, signed by this process for ten minutes.
The browser sends it along when the provider leads back here (`SameSite=Lax`), and its prefix `__Host-` keeps other
machines of the same domain from planting one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fedcore.errors import Unauthorized
from fedcore.secagg import Randomness

LOGIN_SECONDS: Final = 600
_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLogin:
    """A login that has begun.

    state: which the provider gives back.
    nonce: which the ID token has to hold.
    verifier: of PKCE.
    expires: seconds since 1970.
    """

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    expires: float


class LoginCookies:
    """Makes these cookies and reads them.

    name
        Of the cookies.
    wall
        Seconds since 1970.
    randomness
        For the key and all values.
    """

    def __init__(self, name: str, wall: Callable[[], float], randomness: Randomness) -> None:
        self.name = name
        self._wall = wall
        self._randomness = randomness
        self._key = randomness(_BYTES)

    def begin(self) -> tuple[PendingLogin, str]:
        """A new login, and the value of its cookie."""
        state, nonce, verifier = (_text(self._randomness(_BYTES)) for _ in range(3))
        login = PendingLogin(state=state, nonce=nonce, verifier=verifier, expires=self._wall() + LOGIN_SECONDS)
        content = _text(json.dumps([state, nonce, verifier, login.expires]).encode())
        return login, f"{content}.{self._sign(content)}"

    def read(self, cookie: str, state: str) -> PendingLogin:
        """The login of a cookie, to which `state` belongs; raises Unauthorized, alike for all that is none."""
        content, _, signature = cookie.partition(".")
        # Bytes, since text that is not ASCII cannot be compared so.
        if hmac.compare_digest(signature.encode(), self._sign(content).encode()):
            values = json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
            login = PendingLogin(state=values[0], nonce=values[1], verifier=values[2], expires=values[3])
            if hmac.compare_digest(login.state.encode(), state.encode()) and login.expires > self._wall():
                return login
        raise Unauthorized(
            "no login of this browser is under way here, or it took too long; begin again", check="login"
        )

    def _sign(self, content: str) -> str:
        return _text(hmac.digest(self._key, b"fedcore login cookie\0" + content.encode(), hashlib.sha256))


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode("ascii").rstrip("=")
