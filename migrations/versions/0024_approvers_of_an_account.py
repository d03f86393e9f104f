"""An account may state who must approve, and how many persons: its column, and the indexes of their entries."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_REFUSE = "SELECT RAISE(ABORT, 'what the ledger has written stays as it is')"
_COLUMNS_BEFORE = (
    "budget", "totals", "state", "head_hash", "approval_above", "next_expiry", "releases", "partitions_drawn",
    "partitions_undeclared", "spending_sum", "caps", "cap_totals", "period_state", "allotted",
)  # fmt: skip
_CHANGES_BEFORE = (
    "kind IN ('change_proposed', 'budget_changed', 'account_closed', 'account_reopened', 'caps_changed',"
    " 'change_rejected')"
)
_CHANGES = f"{_CHANGES_BEFORE[:-1]}, 'change_approved', 'approvers_changed')"
_APPROVALS = "kind = 'approved'"
_BEYOND_OLDER = {
    "accounts with approvers": "SELECT 1 FROM accounts WHERE approvers IS NOT NULL LIMIT 1",
    "proposals that state whose approvals they need": "SELECT 1 FROM journal WHERE kind = 'proposed'"
    " AND body LIKE '%\"approval_of\"%' LIMIT 1",
    "approvals of changes": "SELECT 1 FROM journal WHERE kind IN ('change_approved', 'approvers_changed') LIMIT 1",
}


def upgrade() -> None:
    """Add the column, which like the others changes only with a later entry."""
    op.add_column("accounts", sa.Column("approvers", sa.Text(), nullable=True))
    _forward(*_COLUMNS_BEFORE, "approvers")
    _index_changes(_CHANGES)
    op.create_index(
        "journal_approvals",
        "journal",
        ["release_id", "account_id", "seq"],
        postgresql_where=sa.text(_APPROVALS),
        sqlite_where=sa.text(_APPROVALS),
    )


def downgrade() -> None:
    """Back to one other person, whoever may approve.

    Raises:
        Conflict: there are accounts or entries that the older version does not know.
    """
    for what, query in _BEYOND_OLDER.items():
        if op.get_bind().execute(sa.text(query)).first() is not None:
            raise Conflict(f"the older version's tables cannot hold {what}")
    op.drop_index("journal_approvals", "journal")
    _index_changes(_CHANGES_BEFORE)
    _forward(*_COLUMNS_BEFORE)
    op.execute("ALTER TABLE accounts DROP COLUMN approvers")


def _forward(*columns: str) -> None:
    """Make the trigger again by which an account's row changes only with a later entry, or gets another seal."""
    like, unlike = ("IS NOT DISTINCT FROM", "IS DISTINCT FROM") if _on_postgresql() else ("IS", "IS NOT")
    more = " OR ".join([f"NEW.seal {like} OLD.seal", *(f"NEW.{column} {unlike} OLD.{column}" for column in columns)])
    condition = (
        "OLD.seal IS NOT NULL AND (NEW.seal IS NULL OR NEW.spending_sum IS NULL OR NEW.head_seq < OLD.head_seq OR"
        f" (NEW.head_seq = OLD.head_seq AND OLD.spending_sum IS NOT NULL AND ({more})))"
    )
    on, act = "", f"WHEN {condition} BEGIN {_REFUSE}; END"
    if _on_postgresql():
        on, act = " ON accounts", f"FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse_change()"
    op.execute(f"DROP TRIGGER accounts_by_entry{on}")
    op.execute(f"CREATE TRIGGER accounts_by_entry BEFORE UPDATE ON accounts {act}")


def _index_changes(kinds: str) -> None:
    """Make the index of the last changes anew, over entries of these kinds."""
    op.drop_index("journal_changes", "journal")
    op.create_index(
        "journal_changes",
        "journal",
        ["account_id", "seq"],
        postgresql_where=sa.text(kinds),
        sqlite_where=sa.text(kinds),
    )


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
