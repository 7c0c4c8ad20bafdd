"""Messages between a browser and the server: sessions, read-only links, and figures to draw.

Other than in `fedcore.wire.base`, a number that is none is null here: browsers read JSON without NaN and infinity.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from fedcore.wire.base import Message, MetricValue, Moment
from fedcore.wire.events import PrivacyTerms
from fedcore.wire.uploads import NOTHING, Contribution

SESSION_COOKIE: Final = "fedcore-session"
"""Begins the name of the cookie of a session, which a browser or an operator's kit keeps."""
LONGEST_TOKEN: Final = 16_384
"""Characters of a token; the longest are those of an identity provider."""
MOST_MARKS: Final = 200
"""Exchanges of which the marks are kept."""
Mark = Literal[".", "j", "t", "u", "d", "x", "!"]
"""The state of a client in an exchange: not asked, joined, training (its keys are here), update received, done,
dropped, blamed."""


def session_cookie(authority: bytes) -> str:
    """The name of the cookie of a session with the federation that has this authority (raw key, 32 bytes).

    Browsers send cookies to every port of a host, on which several federations may be.
    """
    return f"{SESSION_COOKIE}-{hashlib.sha256(authority).hexdigest()[:16]}"


class ViewerMessage(Message):
    """Base of what the server sends to a browser."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="null")


class Role(StrEnum):
    """What a session may do: all that the operator's token may, or look only."""

    OPERATOR = "operator"
    VIEWER = "viewer"


class SessionIn(Message):
    """POST /v1/session: the operator's token, that of a read-only link, or one of the identity provider."""

    token: str = Field(min_length=1, max_length=LONGEST_TOKEN, repr=False)


class SessionOut(ViewerMessage):
    """GET /v1/session: who asks.

    expires: None for a request with the operator's token itself.
    person: who signed in at the identity provider; "" for anybody else.
    """

    role: Role
    federation: str
    expires: Moment | None
    person: str = ""


class OidcOut(ViewerMessage):
    """GET /v1/oidc: the identity provider at which people may sign in.

    client_id: under which it knows `fedcore login`.
    scope: what to ask for.
    """

    issuer: str
    client_id: str
    scope: str


Label = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]*$")
]


class LinkIn(Message):
    """POST /v1/links: a read-only link for somebody.

    days: how long it is good.
    """

    label: Label
    days: int = Field(ge=1, le=365)


class LinkInfo(ViewerMessage):
    """A read-only link, without its token."""

    id: str
    label: str
    created: Moment
    expires: Moment


class LinkOut(LinkInfo):
    """A link that was just made.

    token, url: shown this once; the server keeps their hash.
    """

    token: str = Field(repr=False)
    url: str = Field(repr=False)


class LinksOut(ViewerMessage):
    """GET /v1/links: the links that are good, the newest first."""

    links: list[LinkInfo]


class RoundOut(ViewerMessage):
    """One round: its training and its evaluation, together.

    seconds: of both.
    train, evaluate: their metrics.
    server: what the ServerApp's own evaluation gave.
    up, down: bytes of all clients.
    epsilon: spent up to here.
    cohort: clients that were asked, survivors: whose updates are in the sum, dropped: the others.
    """

    round: int
    seconds: float
    train: dict[str, MetricValue | None]
    evaluate: dict[str, MetricValue | None]
    server: dict[str, MetricValue | None] = Field(default_factory=dict)
    up: int
    down: int
    epsilon: float | None
    cohort: int
    survivors: int
    dropped: int


class RoundsOut(ViewerMessage):
    """GET /v1/runs/{run}/rounds.

    planned: rounds, where the app says so.
    promise: what the masks and the noise of the run promise, in one sentence; "" of a plain run.
    up, down: bytes that all exchanges took, of questions before the first round, too.
    seq: number of the last event in it.
    """

    rounds: list[RoundOut]
    up: int
    down: int
    planned: int | None
    privacy: PrivacyTerms | None
    promise: str
    seq: int


class ClientMarks(ViewerMessage):
    """One client's line of marks, one character for each exchange, as `Mark` says.

    gave: to the whole run, also before the exchanges that have marks.
    """

    name: str
    marks: str
    gave: Contribution = NOTHING


class MarksOut(ViewerMessage):
    """GET /v1/runs/{run}/marks: the last exchanges, the oldest first, and where each client stood in them."""

    exchanges: list[int]
    kinds: list[Literal["train", "evaluate", "query"]]
    clients: list[ClientMarks]


class ServerViewOut(ViewerMessage):
    """GET /v1/runs/{run}/saw: the beginnings of what the server saw in the newest exchange that made a model.

    client: whose update came first.
    bits: of each number of `words`, its masked update as it came, and of `sum`, all of them together, still masked.
    mean: numbers of the model that the sum gave once its masks were off.
    """

    exchange: int
    client: str
    bits: int
    words: list[int]
    sum: list[int]
    mean: list[float | None]


class CrowdOut(ViewerMessage):
    """In GET /v1/live, of a federation with many members: how many there are, and how many of them are connected."""

    online: int
    members: int
