"""Version 5: records of the transcript have a place in the chain, and the head of it after them.

So exchanges that are open at the same time may end in any order (docs/adr/0045).
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Every record that is closed has the place that it had, and its hash is the head after it."""
    op.add_column("records", sa.Column("previous", sa.String, nullable=False, server_default=""))
    op.add_column("records", sa.Column("place", sa.Integer, nullable=True))
    op.add_column("records", sa.Column("head", sa.String, nullable=False, server_default=""))
    op.create_index("ix_records_place", "records", ["place"], unique=True)
    op.create_index("ix_records_head", "records", ["head"])
    op.execute("UPDATE records SET place = number, head = hash WHERE hash <> ''")
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT number, record FROM records")).all()
    for number, record in rows:
        previous = _task(record).get("previous", "")
        connection.execute(
            sa.text("UPDATE records SET previous = :previous WHERE number = :number"),
            {"previous": previous, "number": number},
        )


def downgrade() -> None:
    """Only for a transcript in which every record names the one before."""
    op.drop_index("ix_records_head", "records")
    op.drop_index("ix_records_place", "records")
    for column in ("head", "place", "previous"):
        op.drop_column("records", column)


def _task(record: object) -> dict[str, str]:
    document = json.loads(record) if isinstance(record, str | bytes) else record
    assert isinstance(document, dict)  # noqa: S101 - a column of JSON
    task: dict[str, str] = document["task"]
    return task
