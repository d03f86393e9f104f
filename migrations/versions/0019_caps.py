"""Caps on tags: of accounts, and what holds add to their totals."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_COLUMNS = (("accounts", "caps"), ("accounts", "cap_totals"), ("holds", "caps"))
_BEFORE = "kind IN ('change_proposed', 'budget_changed', 'account_closed', 'account_reopened')"
_AFTER = "kind IN ('change_proposed', 'budget_changed', 'account_closed', 'account_reopened', 'caps_changed')"


def upgrade() -> None:
    """Add the columns; the last change of an account may be one of its caps."""
    for table, column in _COLUMNS:
        op.add_column(table, sa.Column(column, sa.Text(), nullable=True))
    _index(_AFTER)


def downgrade() -> None:
    """Back to accounts without caps.

    Raises:
        Conflict: there are caps, which the older version would not enforce.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM accounts WHERE caps IS NOT NULL LIMIT 1").first() is not None:
        raise Conflict("the older version's tables cannot hold caps on tags")
    _index(_BEFORE)
    for table, column in _COLUMNS:
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")


def _index(kinds: str) -> None:
    """Make the index of the last changes anew, over entries of these kinds."""
    op.drop_index("journal_changes", "journal")
    op.create_index(
        "journal_changes",
        "journal",
        ["account_id", "seq"],
        postgresql_where=sa.text(kinds),
        sqlite_where=sa.text(kinds),
    )
