"""The lines of a client's ledger, a class for each kind, and how they are read back.

To note something new, write a class, add it to `Entry`, and say in `client_app.ledger.Ledger` what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, TypeAdapter

from client_app.journal import read_lines
from fedcore.transcript import Attempt

LEDGER_FILE: Final = "ledger.jsonl"


class _Entry(BaseModel):
    """Of which exchange of which run a line is."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    run: str
    exchange: int


class Asked(_Entry):
    """What the server asked for, whatever came of it.

    at: seconds since 1970. model: its SHA-256, or "" for none. cohort: how many clients. changed: which keys of the
    run's config and settings differ from the installed app's, with the values that were asked for, cut short.
    """

    event: Literal["asked"] = "asked"
    at: float
    message_type: str
    aggregation: str
    app_sha256: str
    model: str
    cohort: int
    changed: dict[str, str]


class Entered(_Entry):
    """The number of an exchange is used up. at: seconds since 1970, 0 where it is not known."""

    event: Literal["entered"] = "entered"
    at: float = 0.0


class Refused(_Entry):
    """This client did not go on with an exchange. check, subject: as the server was told; at: seconds since 1970."""

    event: Literal["refused"] = "refused"
    at: float
    check: str
    subject: str


class Spent(_Entry):
    """A noised update was about to leave this machine. attempt: what its sum reveals, and who was to make it up."""

    event: Literal["spent"] = "spent"
    attempt: Attempt


class Returned(_Entry):
    """It is proven that what was spent in this exchange never left the masks."""

    event: Literal["returned"] = "returned"


class Released(_Entry):
    """This client agreed to a sum over `survivors`.

    purpose: the first part of the message type. model: its SHA-256, or "" for none. survivors: as `ids_to_text` writes
    them. scales: SHA-256 of the encoding.
    """

    event: Literal["released"] = "released"
    purpose: str
    model: str
    survivors: str
    scales: str


class Scaled(_Entry):
    """The scales of an exchange keep their rule. layout: digest of the model's layout, hex."""

    event: Literal["scaled"] = "scaled"
    layout: str
    scales: tuple[float, ...]
    falls: int


class Unmasked(_Entry):
    """The shares of an exchange were about to leave this machine."""

    event: Literal["unmasked"] = "unmasked"


class Left(_Entry):
    """An exchange is over for this client, whatever its end was."""

    event: Literal["left"] = "left"


Entry: TypeAlias = Annotated[
    Asked | Entered | Refused | Spent | Returned | Released | Scaled | Unmasked | Left,
    Discriminator("event"),
]
_ENTRY: Final[TypeAdapter[Entry]] = TypeAdapter(Entry)


def read_entries(path: Path, content: bytes) -> Iterator[Entry]:
    """The entries of `content`, which was read from `path` and consists of whole lines; raises ConfigurationError."""
    return read_lines(path, content, _ENTRY.validate_json, unknown="in which exchanges this client took part")


def ids_to_text(ids: Iterable[int]) -> str:
    """Client ids as ranges: "1-50,53"."""
    ordered = sorted(ids)
    starts = [0, *(place for place, (one, two) in enumerate(pairwise(ordered), start=1) if two != one + 1)]
    ends = [*(start - 1 for start in starts[1:]), len(ordered) - 1]
    ranges = [(ordered[start], ordered[end]) for start, end in zip(starts, ends, strict=True)] if ordered else []
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


def ids_from_text(text: str) -> frozenset[int]:
    """The inverse of `ids_to_text`."""
    ids: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        ids.update(range(int(first), int(last or first) + 1))
    return frozenset(ids)
