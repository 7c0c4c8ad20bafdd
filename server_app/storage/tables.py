"""The tables of the server's database, on SQLite and PostgreSQL alike. Large bodies are objects; here are their keys.

A change of these tables is a new revision in `migrations/versions`, and the next `SCHEMA_VERSION`.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

from fedcore.errors import StorageDamaged

_CHANGED: Final = (
    "a text in the server's database was changed on the disk since it was written: stop the server, keep the "
    "database's files, and put back the last backup (docs/howto/troubleshooting.md)"
)

LONG: Final[TypeEngine[int]] = BigInteger().with_variant(
    Integer, "sqlite"
)  # the one integer that SQLite counts up by itself


class PlainText(TypeDecorator[str]):
    """Text from anywhere: what PostgreSQL and UTF-8 cannot hold (NUL, lone surrogates) becomes U+FFFD and "?"."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """To the database."""
        return None if value is None else value.replace("\0", "\ufffd").encode(errors="replace").decode()


_SUM_BITS: Final = 32
_SUM_LETTERS: Final = str.maketrans("01", " \t")


def dump_json(value: Any) -> str:
    """The JSON text of a value with its CRC-32 behind it, each bit as a space or a tab.

    SQLite sees whether its pages have their structure, and not what is in a cell. To all other readers, such as SQL and
    earlier versions of fedcore, this is the same JSON.
    """
    text = json.dumps(value)
    return text + _sum_of(text)


def load_json(stored: str) -> Any:
    """The value of a text of `dump_json`, or of an earlier version, which wrote no sum.

    Raises:
        StorageDamaged: it is another text.
    """
    text = stored.rstrip(" \t")
    try:
        value = json.loads(text)
    except ValueError:
        raise StorageDamaged(_CHANGED, check="changed-text") from None
    if stored not in (text, text + _sum_of(text)):
        raise StorageDamaged(_CHANGED, check="changed-text")
    return value


def _sum_of(text: str) -> str:
    return f"{zlib.crc32(text.encode()):0{_SUM_BITS}b}".translate(_SUM_LETTERS)


class JsonText(TypeDecorator[Any]):
    """JSON as text: PostgreSQL's own types refuse NaN and infinity, which metrics may be."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """To the database."""
        return None if value is None else dump_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """From the database."""
        return None if value is None else load_json(value)


JSON_TEXT: Final[TypeEngine[Any]] = JSON(none_as_null=True).with_variant(JsonText(), "postgresql")

SCHEMA_VERSION: Final = 8
"""Of these tables: one more than the number of alembic's newest revision, and SQLite's `user_version`."""


class Base(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map = {  # noqa: RUF012
        dict[str, Any]: JSON_TEXT,
        list[int]: JSON_TEXT,
        bytes: LargeBinary,
        str: PlainText,
    }


class ClientRow(Base):
    """What a client said when it last joined; it need not join again after a restart.

    id: of the client, in the roster.
    app_sha256: hash of the installed app.
    version: of its fedcore, with the forms of messages.
    """

    __tablename__ = "clients"

    id: Mapped[int] = mapped_column(primary_key=True)
    app_sha256: Mapped[str]
    version: Mapped[str]


class RunRow(Base):
    """A run, in the order of submission. Times are seconds since 1970.

    number: order of submission.
    run: id of the run.
    status: a `RunStatus`.
    reason: why it ended; empty if it finished normally.
    aggregation: "secure" or "plain".
    app: name of the app.
    app_sha256: hash of the app.
    run_config: of the app, with the changes of its submission.
    settings: `[tool.fedcore]`, with the changes of its submission.
    model_sha256: hash of the final model or last checkpoint; empty without one.
    model_size: its size in bytes.
    submitted_at, started_at, ended_at: null before it happened.
    rounds: how many have ended.
    epsilon: what was spent of the privacy budget; null without one.
    question: of a run that asks for statistics.
    known_statistics: of columns, which the run takes from an earlier one: `run`, its id, and `values`, as clients were
        sent them; null if it asks the clients.
    initial_sha256: of the model that the run was submitted with; empty without one.
    deaths: how often its server was killed while leading it, since it last made progress.
    came_to: its progress at the last such death, as a number of rows.
    """

    __tablename__ = "runs"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run: Mapped[str] = mapped_column(unique=True)
    status: Mapped[str] = mapped_column(index=True)
    reason: Mapped[str] = mapped_column(default="")
    aggregation: Mapped[str]
    app: Mapped[str]
    app_sha256: Mapped[str]
    run_config: Mapped[dict[str, Any]]
    settings: Mapped[dict[str, Any]]
    model_sha256: Mapped[str] = mapped_column(default="")
    model_size: Mapped[int] = mapped_column(LONG, default=0)
    submitted_at: Mapped[float | None]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    rounds: Mapped[int] = mapped_column(default=0, server_default="0")
    epsilon: Mapped[float | None]
    question: Mapped[dict[str, Any] | None]
    known_statistics: Mapped[dict[str, Any] | None]
    initial_sha256: Mapped[str] = mapped_column(default="", server_default="")
    deaths: Mapped[int] = mapped_column(default=0, server_default="0")
    came_to: Mapped[int] = mapped_column(default=0, server_default="0")


class ExchangeRow(Base):
    """One exchange; `stage` changes only by compare-and-swap.

    run: id of the run.
    exchange: number within the run.
    stage: the open stage, or "done" or "failed".
    server_round: round of the strategy.
    attempt: 1, or more after a failure.
    cohort: ids of the clients.
    step: of the run's journal, which asked for it.
    task: a `Task`, as sent to the clients.
    extra: what a kind of exchange needs in addition to its task.
    opened_at: seconds since 1970.
    result: how it ended.
    folded: the last checkpoint of the sum, and whose updates are in it.
    """

    __tablename__ = "exchanges"

    run: Mapped[str] = mapped_column(ForeignKey("runs.run"), primary_key=True)
    exchange: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str]
    server_round: Mapped[int]
    attempt: Mapped[int]
    cohort: Mapped[list[int]]
    step: Mapped[int] = mapped_column(default=0, server_default="0")
    task: Mapped[dict[str, Any] | None]
    extra: Mapped[dict[str, Any] | None]
    opened_at: Mapped[float | None]
    result: Mapped[dict[str, Any] | None]
    folded: Mapped[dict[str, Any] | None]


class ReceiptRow(Base):
    """A message that was accepted from a client for a step.

    seq: order of acceptance.
    run, exchange, step, client: which message it is; one of each.
    digest: of the message.
    body: its JSON.
    body_sha256: of the body as stored; null if an earlier fedcore stored it.
    """

    __tablename__ = "receipts"
    __table_args__ = (UniqueConstraint("run", "exchange", "step", "client", name="one_receipt"),)

    seq: Mapped[int] = mapped_column(LONG, primary_key=True, autoincrement=True)
    run: Mapped[str]
    exchange: Mapped[int]
    step: Mapped[str]
    client: Mapped[int]
    digest: Mapped[bytes]
    body: Mapped[bytes]
    body_sha256: Mapped[bytes | None]


class ClosingRow(Base):
    """The end of a stage of an exchange, with the clients that it gave up.

    run, exchange: the exchange.
    number: of the stage within the exchange.
    stage: its name.
    closed_at: seconds since 1970 by the database's clock.
    gone: a `StageClosure`, as JSON.
    """

    __tablename__ = "closings"

    run: Mapped[str] = mapped_column(primary_key=True)
    exchange: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str]
    closed_at: Mapped[float]
    gone: Mapped[dict[str, Any]]


class StepRow(Base):
    """The journal of a run: a request of its ServerApp, and the answer.

    run: id of the run.
    number: of the request, from 1.
    digest: of the request, to recognise it after a restart.
    request: as JSON.
    answer: as JSON; null while there is none.
    """

    __tablename__ = "steps"

    run: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[bytes]
    request: Mapped[dict[str, Any]]
    answer: Mapped[dict[str, Any] | None]


class LeaseRow(Base):
    """A lease on what one server at a time may do, such as leading the federation.

    name: of the lease.
    holder: the server that has it.
    url: its address.
    until: seconds since 1970 by the database's clock.
    generation: grows with every acquisition, and fences the writes of an earlier holder.
    """

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    url: Mapped[str]
    until: Mapped[float]
    generation: Mapped[int] = mapped_column(LONG)


class RosterRow(Base):
    """A version of the federation's roster.

    version: of the roster.
    text: of the signed roster.
    """

    __tablename__ = "rosters"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str]


class SessionRow(Base):
    """A signed-in browser. Times are seconds since 1970.

    digest: SHA-256 of the cookie.
    role: a `Role`, operator or viewer.
    holder: the link of a viewer, or which of the operator's tokens.
    label: of the link.
    created, expires: when it began, and when it ends.
    """

    __tablename__ = "sessions"

    digest: Mapped[bytes] = mapped_column(primary_key=True)
    role: Mapped[str]
    holder: Mapped[str] = mapped_column(index=True)
    label: Mapped[str]
    created: Mapped[float]
    expires: Mapped[float]


class LinkRow(Base):
    """A read-only link. Times are seconds since 1970.

    id: for listing and revoking it.
    digest: SHA-256 of its token.
    label: for whom it was made.
    created, expires: when it was made, and when it ends.
    """

    __tablename__ = "links"

    id: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[bytes] = mapped_column(unique=True)
    label: Mapped[str]
    created: Mapped[float]
    expires: Mapped[float]


class RecordRow(Base):
    """A record of the transcript, in the order of opening.

    number: order of opening.
    run, exchange: the exchange that it records.
    previous: the head of the chain when its exchange was opened.
    place: in the chain, from 1; null while the exchange is open.
    hash: one of the two below; empty while the exchange is open.
    head: of the chain after it.
    complete_hash: if the exchange gives a sum.
    unfinished_hash: if it gives none.
    record: as JSON.
    signatures: by client id, in base64.
    """

    __tablename__ = "records"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run: Mapped[str] = mapped_column(index=True)
    exchange: Mapped[int]
    previous: Mapped[str] = mapped_column(default="", server_default="")
    place: Mapped[int | None] = mapped_column(index=True, unique=True)
    hash: Mapped[str] = mapped_column(default="", index=True)
    head: Mapped[str] = mapped_column(default="", server_default="", index=True)
    complete_hash: Mapped[str]
    unfinished_hash: Mapped[str]
    record: Mapped[dict[str, Any]]
    signatures: Mapped[dict[str, Any]]


class EventRow(Base):
    """One event of a run.

    run: id of the run.
    seq: number within the run.
    seconds: since the run began.
    time: ISO 8601 with a time zone.
    event: as JSON.
    """

    __tablename__ = "events"
    __table_args__ = (Index("events_by_run", "run", "seq"),)

    run: Mapped[str] = mapped_column(ForeignKey("runs.run"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    time: Mapped[str]
    event: Mapped[dict[str, Any]]
