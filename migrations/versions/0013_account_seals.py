"""Accounts are sealed with the secret."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_WITHOUT_ENTRY = "NEW.head_seq <= OLD.head_seq"
_BUT_TO_SEAL = f"{_WITHOUT_ENTRY} AND OLD.seal IS NOT NULL"  # a row without a seal serves nobody


def upgrade() -> None:
    """Add the column; what it holds takes the secret, and is written at the next start."""
    op.add_column("accounts", sa.Column("seal", sa.Text(), nullable=True))
    _replace_trigger(_BUT_TO_SEAL)


def downgrade() -> None:
    """Back to accounts without seals.

    Raises:
        Conflict: there are some, which the older version would let get stale.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM accounts WHERE seal IS NOT NULL LIMIT 1").first() is not None:
        raise Conflict("the older version's tables cannot hold accounts that are sealed with the secret")
    _replace_trigger(_WITHOUT_ENTRY)
    op.execute("ALTER TABLE accounts DROP COLUMN seal")


def _replace_trigger(condition: str) -> None:
    """An account's row changes with an entry of its journal only."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER accounts_by_entry ON accounts")
        op.execute(
            "CREATE TRIGGER accounts_by_entry BEFORE UPDATE ON accounts FOR EACH ROW"
            f" WHEN ({condition}) EXECUTE FUNCTION refuse_change()"
        )
    else:
        op.execute("DROP TRIGGER accounts_by_entry")
        op.execute(
            f"CREATE TRIGGER accounts_by_entry BEFORE UPDATE ON accounts WHEN {condition}"
            " BEGIN SELECT RAISE(ABORT, 'what the ledger has written stays as it is'); END"
        )
