"""Version 8: a run may take the statistics of columns from an earlier one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from server_app.storage.tables import JSON_TEXT

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The runs that are there took none."""
    op.add_column("runs", sa.Column("known_statistics", JSON_TEXT))
    op.create_index("ix_records_run", "records", ["run"])


def downgrade() -> None:
    """Runs that wait will ask their clients."""
    op.drop_index("ix_records_run", "records")
    op.drop_column("runs", "known_statistics")
