"""Accounts under others, reservations, and triggers that keep all that was written as it is."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# SQLite adds a column with the constraints that it comes with, but no constraint to a table; a column's may look at
# others.
_COLUMNS = (
    "accounts ADD COLUMN parent_id {integer} CONSTRAINT accounts_parent_id_fkey REFERENCES accounts (id)"
    " CONSTRAINT accounts_parent CHECK (parent_id < id)",
    "accounts ADD COLUMN approval_above TEXT",
    "accounts ADD COLUMN next_expiry TEXT",
    "accounts ADD COLUMN releases {integer} NOT NULL DEFAULT 0 CONSTRAINT accounts_releases CHECK (releases >= 0)",
    "releases ADD COLUMN expires_at TEXT"
    " CONSTRAINT releases_state CHECK (state IN ('proposed', 'reserved', 'committed', 'voided', 'expired')"
    " AND (expires_at IS NOT NULL OR state NOT IN ('reserved', 'expired')))",
    "spending ADD COLUMN reserved {integer} NOT NULL DEFAULT 0"
    " CONSTRAINT spending_counts CHECK (occurrences >= 0 AND reserved >= 0 AND occurrences + reserved > 0)",
)

# What may never change of a row; of a table without such a list, nothing may.
_FIXED = {
    "accounts": "id, name, unit, neighbouring, description, admission, created_at, parent_id",
    "releases": "id, account_id, seq, name, plan, tags, delta, created_at, expires_at",
    "release_tags": "",
    "draws": "",
    "branches_taken": "",
}
# By what SQLite's INSERT OR REPLACE would find the row that it deletes without firing its DELETE trigger.
_KEYS = {
    "accounts": (("id",), ("name",)),
    "releases": (("id",), ("account_id", "seq")),
    "release_tags": (("account_id", "tag", "seq"),),
    "draws": (("id",), ("release_id", "mechanism", "partition", "repetition")),
    "branches_taken": (("release_id", "node", "partition", "turn"),),
}
_REFUSAL = "what the ledger has written stays as it is"
_STEP_BACK = (
    "NOT (OLD.state = 'proposed' AND NEW.state IN ('reserved', 'committed', 'voided', 'expired')"
    " OR OLD.state = 'reserved' AND NEW.state IN ('committed', 'voided', 'expired'))"
)
_WITHOUT_ENTRY = "NEW.head_seq <= OLD.head_seq"
_EIGHTH_ANCESTOR = (
    "(SELECT parent_id FROM accounts WHERE id = " * 7 + "NEW.parent_id" + ")" * 7
)  # of which there is none: a line has at most eight accounts
_WRONG_PARENT = (
    "NEW.parent_id IS NOT NULL AND (NOT EXISTS (SELECT 1 FROM accounts WHERE id = NEW.parent_id"
    f" AND unit = NEW.unit AND neighbouring = NEW.neighbouring) OR {_EIGHTH_ANCESTOR} IS NOT NULL)"
)
_WRONG_PARENT_REFUSAL = "a parent has the same unit and relation, and at most six ancestors"

# What a ledger of the older version cannot hold.
_BEYOND_OLDER = {
    "accounts under others": "SELECT 1 FROM accounts WHERE parent_id IS NOT NULL LIMIT 1",
    "accounts that ask for approval": "SELECT 1 FROM accounts WHERE approval_above IS NOT NULL LIMIT 1",
    "entries of reservations, approvals or refusals": "SELECT 1 FROM journal WHERE kind NOT IN ('account_opened',"
    " 'budget_changed', 'account_closed', 'account_reopened', 'committed', 'drawn') LIMIT 1",
}


def upgrade() -> None:
    integer = "BIGINT" if _on_postgresql() else "INTEGER"
    for column in _COLUMNS:
        op.execute("ALTER TABLE " + column.format(integer=integer))
    op.execute("UPDATE accounts SET releases = (SELECT count(*) FROM releases WHERE account_id = accounts.id)")
    committed = sa.text("state <> 'committed'")
    op.create_index(
        "releases_by_state",
        "releases",
        ["account_id", "state", "seq"],
        postgresql_where=committed,
        sqlite_where=committed,
    )
    op.create_table(
        "holds",
        sa.Column("release_id", sa.Text(), nullable=False),
        sa.Column("account_id", _INTEGER, nullable=False),
        sa.Column("price", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"]),
        sa.PrimaryKeyConstraint("release_id", "account_id"),
    )
    op.create_index("holds_due", "holds", ["account_id", "expires_at"])
    for statement in _postgresql_triggers() if _on_postgresql() else _sqlite_triggers():
        op.execute(statement)


def downgrade() -> None:
    """Back to tables without reservations and parents.

    Raises:
        Conflict: the ledger holds what those tables cannot say.
    """
    connection = op.get_bind()
    beyond = [what for what, query in _BEYOND_OLDER.items() if connection.exec_driver_sql(query).first() is not None]
    if beyond:
        raise Conflict(f"the older version's tables cannot hold {', '.join(beyond)}")
    if _on_postgresql():
        for table in _FIXED:
            op.execute(f"DROP TRIGGER {table}_stay ON {table}")
        for table in ("accounts", "releases"):
            op.execute(f"DROP TRIGGER {table}_fixed ON {table}")
        op.execute("DROP TRIGGER releases_forward ON releases")
        op.execute("DROP TRIGGER accounts_by_entry ON accounts")
        op.execute("DROP TRIGGER accounts_line ON accounts")
        op.execute("DROP FUNCTION refuse_change()")
        op.execute("DROP FUNCTION refuse_wrong_parent()")
    else:
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name <> 'journal'"
        for (trigger,) in connection.exec_driver_sql(query).all():
            op.execute(f"DROP TRIGGER {trigger}")
    op.drop_table("holds")
    op.drop_index("releases_by_state", "releases")
    for table, column in (
        ("spending", "reserved"),
        ("releases", "expires_at"),
        ("accounts", "releases"),
        ("accounts", "next_expiry"),
        ("accounts", "approval_above"),
        ("accounts", "parent_id"),
    ):
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _postgresql_triggers() -> list[str]:
    """For each statement where that is enough, so that one that matches no row is refused too.

    A charge fires only ``accounts_by_entry``, whose condition is all that it costs.
    """
    refuse = "EXECUTE FUNCTION refuse_change()"
    return [
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" RAISE EXCEPTION '{_REFUSAL}'; END $$",
        "CREATE FUNCTION refuse_wrong_parent() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {_WRONG_PARENT} THEN RAISE EXCEPTION '{_WRONG_PARENT_REFUSAL}'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER accounts_line BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION refuse_wrong_parent()",
        f"CREATE TRIGGER accounts_by_entry BEFORE UPDATE ON accounts FOR EACH ROW WHEN ({_WITHOUT_ENTRY}) {refuse}",
        f"CREATE TRIGGER releases_forward BEFORE UPDATE OF state ON releases FOR EACH ROW WHEN ({_STEP_BACK}) {refuse}",
        *(
            f"CREATE TRIGGER {table}_fixed BEFORE UPDATE OF {fixed} ON {table} FOR EACH STATEMENT {refuse}"
            for table, fixed in _FIXED.items()
            if fixed
        ),
        *(
            f"CREATE TRIGGER {table}_stay BEFORE {'' if fixed else 'UPDATE OR '}DELETE OR TRUNCATE ON {table}"
            f" FOR EACH STATEMENT {refuse}"
            for table, fixed in _FIXED.items()
        ),
    ]


def _sqlite_triggers() -> list[str]:
    refuse = f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    statements = [
        f"CREATE TRIGGER accounts_line BEFORE INSERT ON accounts WHEN {_WRONG_PARENT}"
        f" BEGIN SELECT RAISE(ABORT, '{_WRONG_PARENT_REFUSAL}'); END",
        f"CREATE TRIGGER accounts_by_entry BEFORE UPDATE ON accounts WHEN {_WITHOUT_ENTRY} {refuse}",
        f"CREATE TRIGGER releases_forward BEFORE UPDATE OF state ON releases WHEN {_STEP_BACK} {refuse}",
    ]
    for table, fixed in _FIXED.items():
        same = " OR ".join(" AND ".join(f"{column} = NEW.{column}" for column in key) for key in _KEYS[table])
        columns = f" OF {fixed}" if fixed else ""
        statements += [
            f"CREATE TRIGGER {table}_fixed BEFORE UPDATE{columns} ON {table} {refuse}",
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refuse}",
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table}"
            f" WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) {refuse}",
        ]
    return statements
