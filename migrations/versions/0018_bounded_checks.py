"""A draw of the whole input finds an earlier draw, and another branch, without reading all partitions and groups."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the indexes; of an expression, so that a planner never takes them where the primary key finds one row."""
    op.create_index("draws_by_turn", "draws", [sa.text("(release_id || mechanism)"), "repetition"])
    op.create_index("branches_taken_by_branch", "branches_taken", [sa.text("(release_id || node)"), "turn", "branch"])


def downgrade() -> None:
    op.drop_index("branches_taken_by_branch", "branches_taken")
    op.drop_index("draws_by_turn", "draws")
