"""Allotted accounts: their funding, what an account has allotted, and the amount of each allotment."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_ADDED = ("funding", "allotted")
_FIXED = "id, name, unit, neighbouring, description, admission, created_at, parent_id, periods"
_SAME = "account_id = NEW.account_id AND child_id = NEW.child_id"
_BACKWARD = "NEW.account_id <> OLD.account_id OR NEW.child_id <> OLD.child_id OR NEW.seq <= OLD.seq"
_REFUSE = "SELECT RAISE(ABORT, 'what the ledger has written stays as it is')"


def upgrade() -> None:
    """Add the columns and the table: an allotment's row stays, and changes only with a later entry."""
    integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    for column in _ADDED:
        op.add_column("accounts", sa.Column(column, sa.Text(), nullable=True))
    _fix(f"{_FIXED}, funding")
    op.create_table(
        "allotments",
        sa.Column("account_id", integer, nullable=False),
        sa.Column("child_id", integer, nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("price", sa.Text(), nullable=False),
        sa.Column("caps", sa.Text(), nullable=True),
        sa.Column("seq", integer, nullable=False),
        sa.Column("seal", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["child_id"], ["accounts.id"]),
        sa.PrimaryKeyConstraint("account_id", "child_id"),
        sa.CheckConstraint("seq > 0", name="allotments_seq"),
    )
    if _on_postgresql():
        op.execute(
            "CREATE TRIGGER allotments_forward BEFORE UPDATE ON allotments FOR EACH ROW"
            f" WHEN ({_BACKWARD}) EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            "CREATE TRIGGER allotments_stay BEFORE DELETE OR TRUNCATE ON allotments"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    note = "UPDATE last_rowid SET last = coalesce((SELECT max(rowid) FROM allotments), 0)"
    above = "NEW.rowid > 0 AND NEW.rowid > coalesce((SELECT max(last) FROM last_rowid), NEW.rowid)"
    for name, change in (
        ("forward", f"BEFORE UPDATE ON allotments WHEN {_BACKWARD} BEGIN {_REFUSE}"),
        ("no_delete", f"BEFORE DELETE ON allotments BEGIN {_REFUSE}"),
        (
            "no_replace",
            f"BEFORE INSERT ON allotments WHEN EXISTS (SELECT 1 FROM allotments WHERE {_SAME}) BEGIN {_REFUSE}",
        ),
        ("rowid_noted", f"BEFORE INSERT ON allotments BEGIN {note}"),
        ("rowid_last", f"AFTER INSERT ON allotments WHEN NOT ({above}) BEGIN {_REFUSE}"),
        ("rowid_stays", f"BEFORE UPDATE ON allotments WHEN NEW.rowid IS NOT OLD.rowid BEGIN {_REFUSE}"),
    ):
        op.execute(f"CREATE TRIGGER allotments_{name} {change}; END")


def downgrade() -> None:
    """Back to accounts that all share their parents' budgets.

    Raises:
        Conflict: some are allotted, whose releases the older version would not find in the accounts above.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM accounts WHERE funding IS NOT NULL LIMIT 1").first() is not None:
        raise Conflict("the older version's tables cannot hold allotted accounts")
    op.drop_table("allotments")
    _fix(_FIXED)
    for column in _ADDED:
        op.execute(f"ALTER TABLE accounts DROP COLUMN {column}")


def _fix(columns: str) -> None:
    op.execute(f"DROP TRIGGER accounts_fixed{' ON accounts' if _on_postgresql() else ''}")
    act = "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()" if _on_postgresql() else f"BEGIN {_REFUSE}; END"
    op.execute(f"CREATE TRIGGER accounts_fixed BEFORE UPDATE OF {columns} ON accounts {act}")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
