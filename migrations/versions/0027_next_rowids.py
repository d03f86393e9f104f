"""SQLite: a row takes the number after the last one, and the table that triggers note it in keeps its row."""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_KEPT = (
    "accounts",
    "allotments",
    "branches_taken",
    "descriptions",
    "draws",
    "installation_journal",
    "journal",
    "partitions_drawn",
    "release_tags",
    "releases",
    "tabulations",
    "window_totals",
)
_REFUSE = "BEGIN SELECT RAISE(ABORT, 'what the ledger has written stays as it is'); END"
_NEXT = "NEW.rowid IS (SELECT max(last) + 1 FROM last_rowid)"  # where the one row was taken away, nothing is inserted
_ABOVE = "(NEW.rowid > 0 AND NEW.rowid > coalesce((SELECT max(last) FROM last_rowid), NEW.rowid))"


def upgrade() -> None:
    """Require the next rowid: after a row with the largest one, SQLite would have no room for any other.

    Rows of these tables are never deleted, so SQLite takes this rowid by itself.
    """
    if _on_postgresql():
        return
    _require(_NEXT)
    op.execute("DELETE FROM last_rowid")  # somebody may have deleted its one row, or added others
    op.execute("INSERT INTO last_rowid VALUES (0)")
    for change in ("insert", "delete"):
        op.execute(f"CREATE TRIGGER last_rowid_no_{change} BEFORE {change.upper()} ON last_rowid {_REFUSE}")


def downgrade() -> None:
    if _on_postgresql():
        return
    for change in ("insert", "delete"):
        op.execute(f"DROP TRIGGER last_rowid_no_{change}")
    _require(_ABOVE)


def _require(rowid: str) -> None:
    for table in _KEPT:
        op.execute(f"DROP TRIGGER {table}_rowid_last")
        op.execute(f"CREATE TRIGGER {table}_rowid_last AFTER INSERT ON {table} WHEN NOT ({rowid}) {_REFUSE}")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
