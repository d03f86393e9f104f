"""Keys, stored answers and jobs' results are sealed with the secret; changes of accounts can be proposed."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_SEALED = ("api_keys", "stored_answers", "jobs")
_CHANGES = sa.text("kind IN ('change_proposed', 'budget_changed', 'account_closed', 'account_reopened')")
_BEYOND_OLDER = {
    "keys that are sealed with the secret": "SELECT 1 FROM api_keys WHERE seal IS NOT NULL LIMIT 1",
    "changes that were proposed": "SELECT 1 FROM journal WHERE kind = 'change_proposed' LIMIT 1",
}


def upgrade() -> None:
    """Add the columns; what they hold takes the secret, and is written at the next start."""
    for table in _SEALED:
        op.add_column(table, sa.Column("seal", sa.Text(), nullable=True))
    op.create_index(
        "journal_changes", "journal", ["account_id", "seq"], postgresql_where=_CHANGES, sqlite_where=_CHANGES
    )


def downgrade() -> None:
    """Back to keys that are found by the SHA-256 of their tokens.

    Raises:
        Conflict: there are others, which the older version would refuse, or entries that it does not know.
    """
    for what, query in _BEYOND_OLDER.items():
        if op.get_bind().exec_driver_sql(query).first() is not None:
            raise Conflict(f"the older version's tables cannot hold {what}")
    op.drop_index("journal_changes", "journal")
    for table in _SEALED:
        op.execute(f"ALTER TABLE {table} DROP COLUMN seal")
