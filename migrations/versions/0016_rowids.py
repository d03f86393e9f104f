"""SQLite: no row takes another's rowid; holds that end at one moment are found in the order of their releases."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# Whoever takes the rowid of a row with INSERT OR REPLACE or UPDATE OR REPLACE deletes that row, whatever its key, and
# no trigger of deletion fires.
_KEPT = (
    "accounts",
    "branches_taken",
    "descriptions",
    "draws",
    "installation_journal",
    "journal",
    "partitions_drawn",
    "release_tags",
    "releases",
    "tabulations",
)


def upgrade() -> None:
    """Add the triggers and make the index anew.

    SQLite computes a stated rowid twice, for triggers before the insertion and for the row, and the two may differ. So
    a trigger after it looks once more, as far as can be told then: no row is above a new one. It cannot tell that the
    row replaced the newest one.
    """
    _index_holds("account_id", "expires_at", "release_id")
    if _on_postgresql():
        return
    for table in _KEPT:
        there = f"EXISTS (SELECT 1 FROM {table} WHERE rowid = NEW.rowid)"  # NEW.rowid is -1 where none is stated
        _refuse(table, f"{table}_rowid_new", "BEFORE INSERT", there)
        _refuse(table, f"{table}_rowid_stays", "BEFORE UPDATE", "NEW.rowid IS NOT OLD.rowid")
        below = f"NEW.rowid < 1 OR NEW.rowid < (SELECT max(rowid) FROM {table})"
        _refuse(table, f"{table}_rowid_last", "AFTER INSERT", below)


def downgrade() -> None:
    _index_holds("account_id", "expires_at")
    if _on_postgresql():
        return
    for table in _KEPT:
        for name in ("new", "stays", "last"):
            op.execute(f"DROP TRIGGER {table}_rowid_{name}")


def _index_holds(*columns: str) -> None:
    op.drop_index("holds_due", "holds")
    op.create_index("holds_due", "holds", list(columns))


def _refuse(table: str, name: str, change: str, condition: str) -> None:
    refuse = "BEGIN SELECT RAISE(ABORT, 'what the ledger has written stays as it is'); END"
    op.execute(f"CREATE TRIGGER {name} {change} ON {table} WHEN {condition} {refuse}")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
