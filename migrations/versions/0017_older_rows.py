"""Rows without seals are counted once; on SQLite the newest row of a table is not replaced either."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# What a server seals, once, where an older version wrote it.
_WITHOUT_SEAL = {
    "accounts": "seal IS NULL OR spending_sum IS NULL",
    "api_keys": "seal IS NULL",
    "draws": "seal IS NULL",
    "holds": "seal IS NULL",
    "jobs": "seal IS NULL AND state = 'succeeded'",
    "partitions_drawn": "seal IS NULL",
    "releases": "seal IS NULL",
    "stored_answers": "seal IS NULL",
}
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
_REFUSE = "SELECT RAISE(ABORT, 'what the ledger has written stays as it is')"


def upgrade() -> None:
    """Write down which tables have rows without seals at this moment: rows that come later are no older version's.

    On SQLite a trigger notes the last rowid before each insertion, and another one afterwards refuses a row that is not
    above it. SQLite computes a stated rowid twice, but only the second value is the row's, which the second trigger
    sees; nothing comes between the two triggers.
    """
    op.create_table(
        "older_rows",
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("table_name"),
    )
    for table, condition in _WITHOUT_SEAL.items():
        op.execute(f"INSERT INTO older_rows SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {table} WHERE {condition})")
    if _on_postgresql():
        op.execute(
            "CREATE TRIGGER older_rows_stay BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON older_rows"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for change in ("insert", "update", "delete"):
        op.execute(f"CREATE TRIGGER older_rows_no_{change} BEFORE {change.upper()} ON older_rows BEGIN {_REFUSE}; END")
    op.create_table("last_rowid", sa.Column("last", sa.Integer(), nullable=False))  # one row
    op.execute("INSERT INTO last_rowid VALUES (0)")
    for table in _KEPT:
        op.execute(f"DROP TRIGGER {table}_rowid_new")
        op.execute(f"DROP TRIGGER {table}_rowid_last")
        note = f"UPDATE last_rowid SET last = coalesce((SELECT max(rowid) FROM {table}), 0)"
        op.execute(f"CREATE TRIGGER {table}_rowid_noted BEFORE INSERT ON {table} BEGIN {note}; END")
        # Where the one row was taken away, nothing is inserted.
        above = "NEW.rowid > 0 AND NEW.rowid > coalesce((SELECT max(last) FROM last_rowid), NEW.rowid)"
        op.execute(f"CREATE TRIGGER {table}_rowid_last AFTER INSERT ON {table} WHEN NOT ({above}) BEGIN {_REFUSE}; END")


def downgrade() -> None:
    op.drop_table("older_rows")
    if _on_postgresql():
        return
    for table in _KEPT:
        op.execute(f"DROP TRIGGER {table}_rowid_noted")
        op.execute(f"DROP TRIGGER {table}_rowid_last")
        there = f"EXISTS (SELECT 1 FROM {table} WHERE rowid = NEW.rowid)"
        op.execute(f"CREATE TRIGGER {table}_rowid_new BEFORE INSERT ON {table} WHEN {there} BEGIN {_REFUSE}; END")
        below = f"NEW.rowid < 1 OR NEW.rowid < (SELECT max(rowid) FROM {table})"
        op.execute(f"CREATE TRIGGER {table}_rowid_last AFTER INSERT ON {table} WHEN {below} BEGIN {_REFUSE}; END")
    op.drop_table("last_rowid")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
