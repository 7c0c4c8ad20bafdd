"""Version 6: messages of clients are kept with a digest of what is kept, so that damage on the disk is found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Messages that are there have none, and are not looked at."""
    op.add_column("receipts", sa.Column("body_sha256", sa.LargeBinary, nullable=True))


def downgrade() -> None:
    """Nobody looks any more."""
    op.drop_column("receipts", "body_sha256")
