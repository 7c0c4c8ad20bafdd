"""The tables of the server's database, on SQLite and PostgreSQL alike. Large bodies are objects; here are their keys.

A change of these tables is a new revision in `migrations/versions`, and the next `SCHEMA_VERSION`.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ForeignKey, Index, LargeBinary, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from server_app.storage.column_types import JSON_TEXT, LONG, PlainText

SCHEMA_VERSION: Final = 7
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
    """What a client said when it last joined; it need not join again after a restart."""

    __tablename__ = "clients"

    id: Mapped[int] = mapped_column(primary_key=True)
    app_sha256: Mapped[str]
    version: Mapped[str]


class RunRow(Base):
    """A run, in the order of submission. `status` is a `fedcore.wire.RunStatus`; times are seconds since 1970.

    rounds: how many have ended. epsilon: what was spent of the privacy budget, None without one. question: of a run
    that asks for statistics. initial_sha256: of the model that the run was told to begin with, "" without one.

    deaths: how often its server was killed while it led it, since it came further last.
    came_to: how far it had come when that happened last: how many rows it had.
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
    initial_sha256: Mapped[str] = mapped_column(default="", server_default="")
    deaths: Mapped[int] = mapped_column(default=0, server_default="0")
    came_to: Mapped[int] = mapped_column(default=0, server_default="0")


class ExchangeRow(Base):
    """One exchange; `stage` changes only by compare-and-swap.

    step: of the run's journal, which asked for it. task: a `fedcore.wire.Task`. extra: what a kind of exchange needs
    beyond its task. opened_at: seconds since 1970. result: how it ended. folded: the last checkpoint of the sum, and
    whose updates are in it.
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
    """What a client sent for a step, in the order of acceptance (`seq`): its JSON, and its digest.

    body_sha256: of the body as it is kept here; None where an earlier fedcore kept it.
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
    """That a stage of an exchange was closed, as its `number`th; gone: a `Closing`, as JSON.

    closed_at: seconds since 1970 by the database's clock.
    """

    __tablename__ = "closings"

    run: Mapped[str] = mapped_column(primary_key=True)
    exchange: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str]
    closed_at: Mapped[float]
    gone: Mapped[dict[str, Any]]


class StepRow(Base):
    """The journal of a run: what its ServerApp asked for, counted from 1, and the answer, None while there is none."""

    __tablename__ = "steps"

    run: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[bytes]
    request: Mapped[dict[str, Any]]
    answer: Mapped[dict[str, Any] | None]


class LeaseRow(Base):
    """Who may do a thing that one server at a time does; until: seconds since 1970 by the database's clock.

    generation: grows with every taking, so that a holder of before can be told from the present one.
    """

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    url: Mapped[str]
    until: Mapped[float]
    generation: Mapped[int] = mapped_column(LONG)


class RosterRow(Base):
    """A version of the federation's roster: the text of a signed roster."""

    __tablename__ = "rosters"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str]


class SessionRow(Base):
    """Somebody who is signed in. digest: SHA-256 of the cookie. role: a `fedcore.watch_wire.Role`.

    holder: the link by which a viewer came, or which token of the operator's. Times are seconds since 1970.
    """

    __tablename__ = "sessions"

    digest: Mapped[bytes] = mapped_column(primary_key=True)
    role: Mapped[str]
    holder: Mapped[str] = mapped_column(index=True)
    label: Mapped[str]
    created: Mapped[float]
    expires: Mapped[float]


class LinkRow(Base):
    """A read-only link that an operator gave away. digest: SHA-256 of its token. Times are seconds since 1970."""

    __tablename__ = "links"

    id: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[bytes] = mapped_column(unique=True)
    label: Mapped[str]
    created: Mapped[float]
    expires: Mapped[float]


class RecordRow(Base):
    """A record of the transcript, in the order of opening; `hash` is one of the two, "" while it is open.

    previous: the head that its exchange was opened at. place: in the chain, from 1 on, None while it is open. head: of
    the chain after it.
    record: as JSON. signatures: client id -> base64.
    """

    __tablename__ = "records"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run: Mapped[str]
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
    """One event of a run, as `fedcore.events.Recorded`; time: ISO 8601 with a time zone, event: as JSON."""

    __tablename__ = "events"
    __table_args__ = (Index("events_by_run", "run", "seq"),)

    run: Mapped[str] = mapped_column(ForeignKey("runs.run"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    time: Mapped[str]
    event: Mapped[dict[str, Any]]
