"""Version 7: a run says how often its server was killed while it led it, and how far it had come by then."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of the runs that are there, no death is known."""
    op.add_column("runs", sa.Column("deaths", sa.Integer, nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("came_to", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    """Nobody counts any more."""
    for column in ("came_to", "deaths"):
        op.drop_column("runs", column)
