"""The accounts under one are found by an index."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("accounts_by_parent", "accounts", ["parent_id", "name"])


def downgrade() -> None:
    op.drop_index("accounts_by_parent", "accounts")
