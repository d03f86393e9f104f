"""Jobs: computations that take longer than a request may."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("permille", _INTEGER, nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("attempts", _INTEGER, nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("leased_until", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="jobs_state"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("jobs_by_state", "jobs", ["state", "created_at"])


def downgrade() -> None:
    op.drop_table("jobs")
