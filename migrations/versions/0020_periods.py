"""Accounts with periods: their calendar, the periods of releases and holds, and the totals of windows."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_ADDED = {"accounts": ("periods", "period_state"), "releases": ("periods",), "holds": ("periods",)}
_FIXED = {
    "accounts": "id, name, unit, neighbouring, description, admission, created_at, parent_id",
    "releases": "id, account_id, seq, name, plan, tags, delta, created_at, expires_at",
}
_SAME = "account_id = NEW.account_id AND place = NEW.place"
_BACKWARD = "NEW.account_id <> OLD.account_id OR NEW.place <> OLD.place OR NEW.seq <= OLD.seq"
_REFUSE = "SELECT RAISE(ABORT, 'what the ledger has written stays as it is')"


def upgrade() -> None:
    """Add the columns and the table: a window's row stays, and changes only with a later entry."""
    integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    for table, columns in _ADDED.items():
        for column in columns:
            op.add_column(table, sa.Column(column, sa.Text(), nullable=True))
    for table, fixed in _FIXED.items():
        _fix(table, f"{fixed}, periods")
    op.create_table(
        "window_totals",
        sa.Column("account_id", integer, nullable=False),
        sa.Column("place", integer, nullable=False),
        sa.Column("committed", sa.Text(), nullable=False),
        sa.Column("held", sa.Text(), nullable=False),
        sa.Column("releases", integer, nullable=False),
        sa.Column("seq", integer, nullable=False),
        sa.Column("seal", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.PrimaryKeyConstraint("account_id", "place"),
        sa.CheckConstraint("releases >= 0 AND seq > 0", name="window_totals_counts"),
    )
    if _on_postgresql():
        op.execute(
            "CREATE TRIGGER window_totals_forward BEFORE UPDATE ON window_totals FOR EACH ROW"
            f" WHEN ({_BACKWARD}) EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            "CREATE TRIGGER window_totals_stay BEFORE DELETE OR TRUNCATE ON window_totals"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    note = "UPDATE last_rowid SET last = coalesce((SELECT max(rowid) FROM window_totals), 0)"
    above = "NEW.rowid > 0 AND NEW.rowid > coalesce((SELECT max(last) FROM last_rowid), NEW.rowid)"
    for name, change in (
        ("forward", f"BEFORE UPDATE ON window_totals WHEN {_BACKWARD} BEGIN {_REFUSE}"),
        ("no_delete", f"BEFORE DELETE ON window_totals BEGIN {_REFUSE}"),
        (
            "no_replace",
            f"BEFORE INSERT ON window_totals WHEN EXISTS (SELECT 1 FROM window_totals WHERE {_SAME}) BEGIN {_REFUSE}",
        ),
        ("rowid_noted", f"BEFORE INSERT ON window_totals BEGIN {note}"),
        ("rowid_last", f"AFTER INSERT ON window_totals WHEN NOT ({above}) BEGIN {_REFUSE}"),
        ("rowid_stays", f"BEFORE UPDATE ON window_totals WHEN NEW.rowid IS NOT OLD.rowid BEGIN {_REFUSE}"),
    ):
        op.execute(f"CREATE TRIGGER window_totals_{name} {change}; END")


def downgrade() -> None:
    """Back to accounts without periods.

    Raises:
        Conflict: there are some with them, whose budgets the older version would not hold for each window.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM accounts WHERE periods IS NOT NULL LIMIT 1").first() is not None:
        raise Conflict("the older version's tables cannot hold accounts with periods")
    op.drop_table("window_totals")
    for table, fixed in _FIXED.items():
        _fix(table, fixed)
    for table, columns in _ADDED.items():
        for column in columns:
            op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")


def _fix(table: str, columns: str) -> None:
    on_table = f" ON {table}" if _on_postgresql() else ""
    op.execute(f"DROP TRIGGER {table}_fixed{on_table}")
    act = "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()" if _on_postgresql() else f"BEGIN {_REFUSE}; END"
    op.execute(f"CREATE TRIGGER {table}_fixed BEFORE UPDATE OF {columns} ON {table} {act}")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
