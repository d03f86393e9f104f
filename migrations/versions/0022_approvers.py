"""Keys may have the role approver, and a proposed change of an account may be rejected."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_ROLES_BEFORE = "role IN ('auditor', 'pipeline', 'steward')"
_ROLES = "role IN ('auditor', 'pipeline', 'approver', 'steward')"
_CHANGES_BEFORE = "kind IN ('change_proposed', 'budget_changed', 'account_closed', 'account_reopened', 'caps_changed')"
_CHANGES = f"{_CHANGES_BEFORE[:-1]}, 'change_rejected')"
_BEYOND_OLDER = {
    "keys of approvers": "SELECT 1 FROM api_keys WHERE role = 'approver' LIMIT 1",
    "changes that were rejected": "SELECT 1 FROM journal WHERE kind = 'change_rejected' LIMIT 1",
}


def upgrade() -> None:
    """Admit the role; the last change of an account may be a rejection."""
    _admit(_ROLES_BEFORE, _ROLES)
    _index(_CHANGES)


def downgrade() -> None:
    """Back to three roles.

    Raises:
        Conflict: there are keys or entries that the older version does not know.
    """
    for what, query in _BEYOND_OLDER.items():
        if op.get_bind().exec_driver_sql(query).first() is not None:
            raise Conflict(f"the older version's tables cannot hold {what}")
    _admit(_ROLES, _ROLES_BEFORE)
    _index(_CHANGES_BEFORE)


def _admit(before: str, after: str) -> None:
    """Replace the condition on roles.

    SQLite cannot alter a condition, and a copy of the table would break the references to it while foreign keys are
    enforced. So the text of the table is replaced, which SQLite's documentation names for this; no row changes.
    """
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE api_keys DROP CONSTRAINT api_keys_role")
        op.execute(f"ALTER TABLE api_keys ADD CONSTRAINT api_keys_role CHECK ({after})")
        return
    op.execute("PRAGMA writable_schema = ON")
    old, new = (f"CHECK ({condition})".replace("'", "''") for condition in (before, after))
    op.execute(
        f"UPDATE sqlite_master SET sql = replace(sql, '{old}', '{new}') WHERE type = 'table' AND name = 'api_keys'"
    )
    op.execute("PRAGMA writable_schema = RESET")


def _index(kinds: str) -> None:
    """Make the index of the last changes anew, over entries of these kinds; other connections then read the schema."""
    op.drop_index("journal_changes", "journal")
    op.create_index(
        "journal_changes",
        "journal",
        ["account_id", "seq"],
        postgresql_where=sa.text(kinds),
        sqlite_where=sa.text(kinds),
    )
