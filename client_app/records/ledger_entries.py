"""The lines of a client's ledger, a class for each kind, and how they are read back.

To note something new, write a class, add it to `Entry`, and say in `client_app.records.ledger.Ledger` what follows
from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Discriminator, TypeAdapter

from client_app.records.journal import read_lines
from fedcore.federation.admission.owner import AgreedSum, LedgerEntry
from fedcore.federation.transcript import NoisedSum
from fedcore.run.groups import GroupAssignmentRecord

LEDGER_FILE: Final = "ledger.jsonl"


class TaskEntry(LedgerEntry):
    """What the server asked for, whatever came of it.

    at: seconds since 1970. attempt: above 1 for one more attempt at the exchange before, as the server says. model: its
    SHA-256, or "" for none. cohort: how many clients. changed: which keys of the
    run's config and settings differ from the installed app's, with the values that were asked for, cut short.
    """

    event: Literal["asked"] = "asked"
    at: float
    attempt: int
    message_type: str
    aggregation: str
    app_sha256: str
    model: str
    cohort: int
    changed: dict[str, str]


class WorkEntry(LedgerEntry):
    """The server asked for work for a later sum. exchange: that of the next exchange. The rest as in `TaskEntry`."""

    event: Literal["worked"] = "worked"
    at: float
    app_sha256: str
    model: str
    changed: dict[str, str]


class EnteredEntry(LedgerEntry):
    """The number of an exchange is used up. at: seconds since 1970, 0 where it is not known."""

    event: Literal["entered"] = "entered"
    at: float = 0.0


class RefusedEntry(LedgerEntry):
    """This client did not go on with an exchange. check, subject: as the server was told; at: seconds since 1970."""

    event: Literal["refused"] = "refused"
    at: float
    check: str
    subject: str


class UploadEntry(LedgerEntry):
    """An update, or a reply, was about to leave this machine. size: in bytes. form: what the server can do with it."""

    event: Literal["sent"] = "sent"
    form: Literal["masked", "readable"]
    size: int


class SpentEntry(LedgerEntry):
    """A noised update was about to leave this machine. attempt: what its sum reveals, and who was to make it up."""

    event: Literal["spent"] = "spent"
    attempt: NoisedSum


class RefundEntry(LedgerEntry):
    """It is proven that what was spent in this exchange never left the masks."""

    event: Literal["returned"] = "returned"


class DrawEntry(LedgerEntry):
    """An answer to the draw of groups was about to leave this machine."""

    event: Literal["drew"] = "drew"
    drawn: GroupAssignmentRecord


class ScalesEntry(LedgerEntry):
    """The scales of an exchange keep their rule. layout: digest of the model's layout, hex."""

    event: Literal["scaled"] = "scaled"
    layout: str
    scales: tuple[float, ...]
    falls: int


class UnmaskEntry(LedgerEntry):
    """The shares of an exchange were about to leave this machine."""

    event: Literal["unmasked"] = "unmasked"


class LeaveEntry(LedgerEntry):
    """An exchange is over for this client, whatever its end was.

    up, down: bytes of all requests and answers meanwhile, without what TLS adds; 0 where an earlier start was ended in
    the middle of it. A masked update has the size that the task gives it, whatever the data.
    """

    event: Literal["left"] = "left"
    up: int = 0
    down: int = 0


Entry: TypeAlias = Annotated[
    TaskEntry
    | WorkEntry
    | EnteredEntry
    | RefusedEntry
    | UploadEntry
    | SpentEntry
    | RefundEntry
    | AgreedSum
    | ScalesEntry
    | UnmaskEntry
    | DrawEntry
    | LeaveEntry,
    Discriminator("event"),
]
_ENTRY: Final[TypeAdapter[Entry]] = TypeAdapter(Entry)


def read_entries(path: Path, content: bytes) -> Iterator[Entry]:
    """The entries of `content`, which was read from `path` and consists of whole lines; raises ConfigurationError."""
    return read_lines(path, content, _ENTRY.validate_json, unknown="in which exchanges this client took part")
