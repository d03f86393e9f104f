"""Scenarios: what a planner's form stated, saved under a name."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "scenarios",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("mechanism", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="scenarios_pkey"),
        sa.UniqueConstraint("principal", "name", name="scenarios_principal_name_key"),
    )
    op.create_index("scenarios_by_time", "scenarios", ["created_at", "id"])


def downgrade() -> None:
    """Back to a planner that keeps nothing; saved scenarios are lost, and no account depends on them."""
    op.drop_table("scenarios")
