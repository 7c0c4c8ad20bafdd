"""Version 3: a run can go on after a restart. Messages are kept, and closings, the journal and leases with them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from server_app.storage.tables import JSON_TEXT, LONG

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_KEPT = "run, exchange, step, client, digest"
_OPEN_RUNS = "the server was upgraded while the run was open; its messages were not kept before. Submit it again"


def upgrade() -> None:
    """A run that was open cannot go on, since its messages were not kept; one that waits waits on."""
    for table, columns in _added().items():
        for column in columns:
            op.add_column(table, column)
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("runs", "model_size", type_=sa.BigInteger)
    runs = sa.table("runs", sa.column("status"), sa.column("reason"))
    interrupted = sa.update(runs).where(runs.c.status == "running")
    op.execute(interrupted.values(status="interrupted", reason=_OPEN_RUNS))
    _number_receipts()
    _make_tables()


def _added() -> dict[str, list[sa.Column[Any]]]:
    return {
        "runs": [
            sa.Column("submitted_at", sa.Double),
            sa.Column("started_at", sa.Double),
            sa.Column("ended_at", sa.Double),
            sa.Column("rounds", sa.Integer, nullable=False, server_default="0"),
            sa.Column("epsilon", sa.Double),
            sa.Column("question", JSON_TEXT),
            sa.Column("initial_sha256", sa.String, nullable=False, server_default=""),
        ],
        "exchanges": [
            sa.Column("step", sa.Integer, nullable=False, server_default="0"),
            sa.Column("task", JSON_TEXT),
            sa.Column("extra", JSON_TEXT),
            sa.Column("opened_at", sa.Double),
            sa.Column("result", JSON_TEXT),
            sa.Column("folded", JSON_TEXT),
        ],
    }


def _number_receipts() -> None:
    op.rename_table("receipts", "old_receipts")
    op.create_table(
        "receipts",
        sa.Column("seq", LONG, primary_key=True, autoincrement=True),
        sa.Column("run", sa.String, nullable=False),
        sa.Column("exchange", sa.Integer, nullable=False),
        sa.Column("step", sa.String, nullable=False),
        sa.Column("client", sa.Integer, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("run", "exchange", "step", "client", name="one_receipt"),
    )
    blob = "BYTEA" if op.get_bind().dialect.name == "postgresql" else "BLOB"
    op.execute(f"INSERT INTO receipts ({_KEPT}, body) SELECT {_KEPT}, CAST('' AS {blob}) FROM old_receipts")  # noqa: S608
    op.drop_table("old_receipts")


def _make_tables() -> None:
    op.create_table(
        "closings",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("closed_at", sa.Double, nullable=False),
        sa.Column("gone", JSON_TEXT, nullable=False),
    )
    op.create_table(
        "steps",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("request", JSON_TEXT, nullable=False),
        sa.Column("answer", JSON_TEXT),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("generation", LONG, nullable=False),
    )
    op.create_table(
        "rosters",
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("text", sa.String, nullable=False),
    )


def downgrade() -> None:
    """What version 2 does not know is lost: kept messages, journals, times, leases."""
    for table in ("rosters", "leases", "steps", "closings"):
        op.drop_table(table)
    op.rename_table("receipts", "new_receipts")
    op.create_table(
        "receipts",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("step", sa.String, primary_key=True),
        sa.Column("client", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
    )
    op.execute(f"INSERT INTO receipts ({_KEPT}) SELECT {_KEPT} FROM new_receipts ORDER BY seq")  # noqa: S608
    op.drop_table("new_receipts")
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("runs", "model_size", type_=sa.Integer)
    for table, columns_of in _added().items():
        for column in columns_of:
            op.drop_column(table, column.name)
