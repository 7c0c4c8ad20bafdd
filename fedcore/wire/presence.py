"""How a client joins a federation and stays connected, and what it reports of its work for a buffered run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fedcore.wire.base import Bytes, FirstContact, Message, Name, Sha256
from fedcore.wire.tasks import Version
from fedcore.wire.uploads import WithdrawIn

MOST_SIGNED: Final = 16
"""Most records that a client names as it joins; more than one has no place only after exchanges that failed."""
LEADER_PATH: Final = "/v1/leader"
"""Clients ask it of servers that they do not use: only the one that leads answers with success."""


class WorkState(StrEnum):
    """How far a client is with a piece of work."""

    TRAINING = "training"
    READY = "ready"
    GIVEN_UP = "given-up"


class WorkIn(Message):
    """What a client has in hand of a buffered run: it trains, or has an update that is in no sum yet, or gave up.

    Nothing of it depends on the client's data, but for when it is said.

    version: what it was given to train from.
    withdrawal: why it gave up.
    """

    run: Name
    version: Version
    state: WorkState
    withdrawal: WithdrawIn | None = None


class JoinIn(FirstContact):
    """A client says that it is there, which app its owner installed, and whether it may train now.

    reports_failures: whether it tells why its local work fails; if not, failures are counted in the sum alone.
    work: what it has in hand of a buffered run, if anything.
    head: of the transcript, as it knows it; "" if it knows none.
    signed: records that it signed and that have no place in its transcript yet: the hash of each if it is complete ->
        that if it is unfinished, "" once enough have signed. None without any.
    """

    app_sha256: Sha256
    version: Name
    eligible: bool = True
    reports_failures: bool = False
    work: WorkIn | None = None
    head: Sha256 | Literal[""] = ""
    signed: Annotated[dict[Sha256, Sha256 | Literal[""]], Field(max_length=MOST_SIGNED)] | None = None


class JoinOut(FirstContact):
    """What the server tells a client that joins; `roster` is the version in use, `roster_sha256` its hash."""

    federation: Name
    name: Name
    version: Name
    heartbeat_seconds: float
    roster: int = Field(ge=1)
    roster_sha256: Sha256


class RostersOut(Message):
    """The rosters that follow the one that a client knows, in order, each the text of a signed roster."""

    rosters: list[str]


class HeartbeatIn(Message):
    """A sign of life: which exchange the client works on, if any, and whether it may train now.

    One that may not (its owner's rules on hours, power and load) stays connected and is not asked. Nor is one that is
    `stopping`, until it joins again; this is its last word.

    received: bytes that it has of the model that it fetches.
    """

    run: str = ""
    exchange: int = 0
    eligible: bool = True
    stopping: bool = False
    received: int | None = Field(None, ge=0)

    @model_serializer(mode="wrap")
    def _without_nothing(self, plainly: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Nothing is received most of the time, and servers of before know no such field."""
        made: dict[str, Any] = plainly(self)
        return {name: value for name, value in made.items() if name != "received" or value is not None}


class AppOut(Message):
    """The files of an app that a run asks for, for an owner to look at and approve; path -> content."""

    files: dict[str, Bytes]


DELTA_BASE: Final = "delta-base"
"""Header of a response with a difference instead of a model: the entity tag of the model it applies to (RFC 3229)."""
OFFERS_HEADER: Final = "fedcore-apps"
"""Header of the response that there is no task: apps of open runs, by hash, if the client has none of them."""
WORK_HEADER: Final = "fedcore-work"
"""Header of the same response: WORK_OVER if the run has ended for which the client last took work."""
WORK_OVER: Final = "over"
