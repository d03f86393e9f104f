"""Accounts' rows hold a sum of their rows of spending, under their seal."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_BEFORE = "OLD.seal IS NOT NULL AND (NEW.head_seq <= OLD.head_seq OR NEW.seal IS NULL)"
# A row that was sealed without a sum gets one without an entry, once.
_AFTER = (
    "OLD.seal IS NOT NULL AND (NEW.seal IS NULL OR NEW.spending_sum IS NULL OR NEW.head_seq < OLD.head_seq"
    " OR (NEW.head_seq = OLD.head_seq AND OLD.spending_sum IS NOT NULL))"
)


def upgrade() -> None:
    """Add the column; what it holds takes the secret, and is written at the next start."""
    op.add_column("accounts", sa.Column("spending_sum", sa.Text(), nullable=True))
    _refuse_updates(_AFTER)


def downgrade() -> None:
    """Back to accounts without the sum.

    Raises:
        Conflict: there are some with it, whose seals the older version does not know.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM accounts WHERE spending_sum IS NOT NULL LIMIT 1").first():
        raise Conflict("the older version does not know the seals of accounts with a sum of their spending")
    _refuse_updates(_BEFORE)
    op.execute("ALTER TABLE accounts DROP COLUMN spending_sum")


def _refuse_updates(condition: str) -> None:
    on, act = "", f"WHEN {condition} BEGIN SELECT RAISE(ABORT, 'what the ledger has written stays as it is'); END"
    if op.get_bind().dialect.name == "postgresql":
        on, act = " ON accounts", f"FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse_change()"
    op.execute(f"DROP TRIGGER accounts_by_entry{on}")
    op.execute(f"CREATE TRIGGER accounts_by_entry BEFORE UPDATE ON accounts {act}")
