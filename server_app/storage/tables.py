"""The tables of the server's database. Blobs are files; here are only their digests."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map = {dict[str, Any]: JSON, list[int]: JSON, bytes: LargeBinary}  # noqa: RUF012


class ClientRow(Base):
    """What a client said when it last joined; it need not join again after a restart."""

    __tablename__ = "clients"

    id: Mapped[int] = mapped_column(primary_key=True)
    app_sha256: Mapped[str]
    version: Mapped[str]


class RunRow(Base):
    """A run, in the order of submission. `status` is a `fedcore.wire.RunStatus`."""

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
    model_size: Mapped[int] = mapped_column(default=0)


class ExchangeRow(Base):
    """One exchange; `stage` changes only by compare-and-swap."""

    __tablename__ = "exchanges"

    run: Mapped[str] = mapped_column(ForeignKey("runs.run"), primary_key=True)
    exchange: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str]
    server_round: Mapped[int]
    attempt: Mapped[int]
    cohort: Mapped[list[int]]


class ReceiptRow(Base):
    """A step that a client has done, and the SHA-256 of what it sent; at most one of each."""

    __tablename__ = "receipts"

    run: Mapped[str] = mapped_column(primary_key=True)
    exchange: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[str] = mapped_column(primary_key=True)
    client: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[bytes]


class RecordRow(Base):
    """A record of the transcript, in the order of the exchanges; `hash` is one of the two, "" while it is open.

    record: as JSON. signatures: client id -> base64.
    """

    __tablename__ = "records"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run: Mapped[str]
    exchange: Mapped[int]
    hash: Mapped[str] = mapped_column(default="", index=True)
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
