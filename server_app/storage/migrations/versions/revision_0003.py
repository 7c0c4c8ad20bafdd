"""Version 4: people sign in at the page. Their sessions and the read-only links are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the two tables."""
    op.create_table(
        "sessions",
        sa.Column("digest", sa.LargeBinary, primary_key=True),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("holder", sa.String, nullable=False, index=True),
        sa.Column("label", sa.String, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
    )
    op.create_table(
        "links",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("label", sa.String, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Everybody is signed out, and the links are good no more."""
    for table in ("links", "sessions"):
        op.drop_table(table)
