"""Version 2: the tables that were there when the history began."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from server_app.storage.tables import JSON_TEXT

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables of version 2."""
    op.create_table(
        "clients",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("app_sha256", sa.String, nullable=False),
        sa.Column("version", sa.String, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("run", sa.String, nullable=False, unique=True),
        sa.Column("status", sa.String, nullable=False, index=True),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("aggregation", sa.String, nullable=False),
        sa.Column("app", sa.String, nullable=False),
        sa.Column("app_sha256", sa.String, nullable=False),
        sa.Column("run_config", JSON_TEXT, nullable=False),
        sa.Column("settings", JSON_TEXT, nullable=False),
        sa.Column("model_sha256", sa.String, nullable=False),
        sa.Column("model_size", sa.Integer, nullable=False),
    )
    _make_exchanges()
    op.create_table(
        "records",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("run", sa.String, nullable=False),
        sa.Column("exchange", sa.Integer, nullable=False),
        sa.Column("hash", sa.String, nullable=False, index=True),
        sa.Column("complete_hash", sa.String, nullable=False),
        sa.Column("unfinished_hash", sa.String, nullable=False),
        sa.Column("record", JSON_TEXT, nullable=False),
        sa.Column("signatures", JSON_TEXT, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("run", sa.String, sa.ForeignKey("runs.run"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("time", sa.String, nullable=False),
        sa.Column("event", JSON_TEXT, nullable=False),
    )
    op.create_index("events_by_run", "events", ["run", "seq"])


def _make_exchanges() -> None:
    op.create_table(
        "exchanges",
        sa.Column("run", sa.String, sa.ForeignKey("runs.run"), primary_key=True),
        sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("server_round", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("cohort", JSON_TEXT, nullable=False),
    )
    op.create_table(
        "receipts",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("step", sa.String, primary_key=True),
        sa.Column("client", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Remove them."""
    for table in ("events", "records", "receipts", "exchanges", "runs", "clients"):
        op.drop_table(table)
