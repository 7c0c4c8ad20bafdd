"""The lines of a client's ledger, a class for each kind, and their parser.

For a new kind of line, write a class, add it to `Entry`, and apply it in `client_app.records.ledger.Ledger`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Discriminator, TypeAdapter

from client_app.records.journal import read_lines
from fedcore.federation.admission.owner import AgreedSum, LedgerEntry, ModelEntry
from fedcore.federation.transcript import NoisedSum
from fedcore.run.groups import GroupAssignmentRecord

LEDGER_FILE: Final = "ledger.jsonl"


class TaskEntry(LedgerEntry):
    """A task of the server, whether or not this client took part."""

    event: Literal["asked"] = "asked"
    at: float
    """Seconds since 1970."""
    attempt: int
    """Above 1 for a repeat of the exchange before, as the server says."""
    message_type: str
    aggregation: str
    app_sha256: str
    model: str
    """Its SHA-256, or "" for none."""
    cohort: int
    """How many clients."""
    changed: dict[str, str]
    """Keys of the run's config and settings that differ from the installed app's, with their values, cut short."""


class WorkEntry(LedgerEntry):
    """A request for background training. `exchange` is the number of the next exchange; the rest as in `TaskEntry`."""

    event: Literal["worked"] = "worked"
    at: float
    app_sha256: str
    model: str
    changed: dict[str, str]


class EnteredEntry(LedgerEntry):
    """The number of an exchange is used up. `at` is in seconds since 1970, 0 if unknown."""

    event: Literal["entered"] = "entered"
    at: float = 0.0


class RefusedEntry(LedgerEntry):
    """This client left an exchange, with the check and subject of its withdrawal; `at` is in seconds since 1970."""

    event: Literal["refused"] = "refused"
    at: float
    check: str
    subject: str


class UploadEntry(LedgerEntry):
    """An update, or a reply, was about to leave this machine: its size in bytes, and whether the server can read it."""

    event: Literal["sent"] = "sent"
    form: Literal["masked", "readable"]
    size: int


class SpentEntry(LedgerEntry):
    """A noised update was about to leave this machine; `attempt` has what its sum reveals, and its cohort."""

    event: Literal["spent"] = "spent"
    attempt: NoisedSum


class RefundEntry(LedgerEntry):
    """The transcript proves that the sum of this exchange stayed masked."""

    event: Literal["returned"] = "returned"


class DrawEntry(LedgerEntry):
    """An answer to the draw of groups was about to leave this machine."""

    event: Literal["drew"] = "drew"
    drawn: GroupAssignmentRecord


class ScalesEntry(LedgerEntry):
    """The scales of an exchange follow the rule; `layout` is a digest of the model's layout, hex."""

    event: Literal["scaled"] = "scaled"
    layout: str
    scales: tuple[float, ...]
    falls: int


class UnmaskEntry(LedgerEntry):
    """The shares of an exchange were about to leave this machine."""

    event: Literal["unmasked"] = "unmasked"


class LeaveEntry(LedgerEntry):
    """An exchange is over for this client, however it ended.

    A masked update has the size that the task gives it, whatever the data.
    """

    event: Literal["left"] = "left"
    up: int = 0
    """Bytes sent meanwhile, without what TLS adds; 0 if the agent ended in the middle of it."""
    down: int = 0
    """Bytes received, likewise."""


Entry: TypeAlias = Annotated[
    TaskEntry
    | WorkEntry
    | EnteredEntry
    | RefusedEntry
    | UploadEntry
    | SpentEntry
    | RefundEntry
    | AgreedSum
    | ModelEntry
    | ScalesEntry
    | UnmaskEntry
    | DrawEntry
    | LeaveEntry,
    Discriminator("event"),
]
_ENTRY: Final[TypeAdapter[Entry]] = TypeAdapter(Entry)


def read_entries(path: Path, content: bytes) -> Iterator[Entry]:
    """Parse complete lines of the ledger at `path`; raises ConfigurationError."""
    return read_lines(path, content, _ENTRY.validate_json, unknown="in which exchanges this client took part")
