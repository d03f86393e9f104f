"""The rows of a tabulation's groups are written after its commit; a mark says that they are not all there yet."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of marks; tabulations of older versions have all their rows."""
    op.create_table(
        "unrecorded_groups",
        sa.Column("release_id", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("draw_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"]),
        sa.ForeignKeyConstraint(["draw_id"], ["draws.id"]),
        sa.PrimaryKeyConstraint("release_id", "node", "draw_id"),
    )


def downgrade() -> None:
    """Drop the table.

    Raises:
        Conflict: groups have no rows yet, so the older version would draw them again.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM unrecorded_groups LIMIT 1").first() is not None:
        raise Conflict(
            "groups of a tabulation are still to be recorded: start the server, which does it within minutes"
        )
    op.drop_table("unrecorded_groups")
