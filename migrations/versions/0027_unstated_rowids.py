"""SQLite: nobody can state the rowid of a row that stays for ever."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_KEPT = (
    "allotments",
    "branches_taken",
    "descriptions",
    "draws",
    "journal",
    "partitions_drawn",
    "release_tags",
    "releases",
    "tabulations",
    "window_totals",
)
_KEYED = ("accounts", "installation_journal")  # whose key is the rowid by another name; they have few rows
_NAMES = ("rowid", "oid", "_rowid_")
_REFUSE = "BEGIN SELECT RAISE(ABORT, 'what the ledger has written stays as it is'); END"
_ABOVE = "(NEW.rowid > 0 AND NEW.rowid > coalesce((SELECT max(last) FROM last_rowid), NEW.rowid))"


def upgrade() -> None:
    """Give a rowid's names to columns that nobody can write, and take it away where it is the key.

    No trigger can guard a rowid that is stated. SQLite computes it anew after the triggers before the insertion, and a
    temporary trigger of the writer's own connection can end the statement before the triggers after it.
    """
    if _on_postgresql():
        return
    for table in (*_KEPT, *_KEYED):
        for name in ("noted", "last", "stays"):
            op.execute(f"DROP TRIGGER {table}_rowid_{name}")
    op.drop_table("last_rowid")
    for table in _KEPT:
        for name in _NAMES:
            op.execute(f"ALTER TABLE {table} ADD COLUMN {name} INTEGER GENERATED ALWAYS AS (NULL) VIRTUAL")
    for table in _KEYED:
        _make_anew(table, with_rowid=False)


def downgrade() -> None:
    if _on_postgresql():
        return
    for table in _KEYED:
        _make_anew(table, with_rowid=True)
    for table in _KEPT:
        for name in _NAMES:
            op.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
    op.create_table("last_rowid", sa.Column("last", sa.Integer(), nullable=False))
    op.execute("INSERT INTO last_rowid VALUES (0)")
    for table in (*_KEPT, *_KEYED):
        note = f"UPDATE last_rowid SET last = coalesce((SELECT max(rowid) FROM {table}), 0)"
        op.execute(f"CREATE TRIGGER {table}_rowid_noted BEFORE INSERT ON {table} BEGIN {note}; END")
        op.execute(f"CREATE TRIGGER {table}_rowid_last AFTER INSERT ON {table} WHEN NOT ({_ABOVE}) {_REFUSE}")
        moved = "NEW.rowid IS NOT OLD.rowid"
        op.execute(f"CREATE TRIGGER {table}_rowid_stays BEFORE UPDATE ON {table} WHEN {moved} {_REFUSE}")


def _make_anew(table: str, *, with_rowid: bool) -> None:
    """Copy a table to one with or without rowids, with its indexes and triggers."""
    connection = op.get_bind()
    query = "SELECT type, sql FROM sqlite_master WHERE lower(tbl_name) = :table AND sql IS NOT NULL ORDER BY rowid"
    made = connection.execute(sa.text(query).bindparams(table=table)).all()
    (definition,) = [sql for kind, sql in made if kind == "table"]
    definition = definition.removesuffix(" WITHOUT ROWID") if with_rowid else f"{definition} WITHOUT ROWID"
    connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")  # until this transaction ends
    for statement in (
        f"CREATE TABLE {table}_before AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        definition,
        *(sql for kind, sql in made if kind == "index"),  # each inserted row is looked for among the rows that name it
        f"INSERT INTO {table} SELECT * FROM {table}_before",
        f"DROP TABLE {table}_before",
        *(sql for kind, sql in made if kind == "trigger"),
    ):
        connection.exec_driver_sql(statement)


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
