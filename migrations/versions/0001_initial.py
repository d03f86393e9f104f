"""The first tables, and the triggers that keep the journal append-only."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# TRUNCATE too: it is neither an UPDATE nor a DELETE. For each statement, so that one that matches no row is refused.
_POSTGRESQL_TRIGGERS = (
    """\
CREATE FUNCTION refuse_journal_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'journal entries are never changed';
END
$$""",
    """\
CREATE TRIGGER journal_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON journal
FOR EACH STATEMENT EXECUTE FUNCTION refuse_journal_change()""",
)
# An INSERT OR REPLACE deletes the old row without firing its DELETE trigger, hence the third.
_SQLITE_TRIGGERS = (
    """\
CREATE TRIGGER journal_no_update BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'journal entries are never changed'); END""",
    """\
CREATE TRIGGER journal_no_delete BEFORE DELETE ON journal
BEGIN SELECT RAISE(ABORT, 'journal entries are never changed'); END""",
    """\
CREATE TRIGGER journal_no_replace BEFORE INSERT ON journal
WHEN EXISTS (SELECT 1 FROM journal WHERE account_id = NEW.account_id AND seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'journal entries are never changed'); END""",
)


def upgrade() -> None:
    _create_account_tables()
    _create_draw_tables()
    postgresql = op.get_bind().dialect.name == "postgresql"
    for trigger in _POSTGRESQL_TRIGGERS if postgresql else _SQLITE_TRIGGERS:
        op.execute(trigger)


def _create_account_tables() -> None:
    op.create_table(
        "installation",
        sa.Column("id", _INTEGER, nullable=False),
        sa.Column("secret_fingerprint", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("accounts", sa.Text(), nullable=True),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Text(), nullable=True),
        sa.Column("revoked_at", sa.Text(), nullable=True),
        sa.CheckConstraint("role IN ('auditor', 'pipeline', 'steward')", name="api_keys_role"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("token_hash"),
    )
    op.create_table(
        "accounts",
        sa.Column("id", _INTEGER, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("neighbouring", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("budget", sa.Text(), nullable=False),
        sa.Column("admission", sa.Text(), nullable=False),
        sa.Column("totals", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("head_seq", _INTEGER, nullable=False),
        sa.Column("head_hash", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('open', 'closed')", name="accounts_state"),
        sa.CheckConstraint("neighbouring IN ('add_remove', 'replace_one')", name="accounts_neighbouring"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "releases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("account_id", _INTEGER, nullable=False),
        sa.Column("seq", _INTEGER, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("delta", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("price", sa.Text(), nullable=False),
        sa.Column("accountant", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("account_id", "seq"),
    )
    op.create_table(
        "release_tags",
        sa.Column("account_id", _INTEGER, nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("seq", _INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.PrimaryKeyConstraint("account_id", "tag", "seq"),
    )
    op.create_table(
        "spending",
        sa.Column("account_id", _INTEGER, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("subplan", sa.Text(), nullable=False),
        sa.Column("occurrences", _INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.PrimaryKeyConstraint("account_id", "digest"),
    )
    op.create_table(
        "journal",
        sa.Column("account_id", _INTEGER, nullable=False),
        sa.Column("seq", _INTEGER, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("release_id", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"]),
        sa.PrimaryKeyConstraint("account_id", "seq"),
    )


def _create_draw_tables() -> None:
    op.create_table(
        "draws",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("release_id", sa.Text(), nullable=False),
        sa.Column("mechanism", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("repetition", _INTEGER, nullable=False),
        sa.Column("account_id", _INTEGER, nullable=False),
        sa.Column("seq", _INTEGER, nullable=False),
        sa.Column("size", _INTEGER, nullable=False),
        sa.Column("noisy", sa.LargeBinary(), nullable=False),
        sa.Column("noisy_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("release_id", "mechanism", "partition", "repetition"),
    )
    op.create_index("draws_by_account", "draws", ["account_id", "seq"])
    op.create_table(
        "branches_taken",
        sa.Column("release_id", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("turn", _INTEGER, nullable=False),
        sa.Column("branch", _INTEGER, nullable=False),
        sa.Column("draw_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["draw_id"], ["draws.id"]),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"]),
        sa.PrimaryKeyConstraint("release_id", "node", "partition", "turn"),
    )
    op.create_table(
        "stored_answers",
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("status", _INTEGER, nullable=False),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("draw_id", sa.Text(), nullable=True),
        sa.Column("api_key_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"]),
        sa.ForeignKeyConstraint(["draw_id"], ["draws.id"]),
        sa.PrimaryKeyConstraint("principal", "key"),
    )


def downgrade() -> None:
    for table in (
        "stored_answers",
        "branches_taken",
        "draws",
        "journal",
        "spending",
        "release_tags",
        "releases",
        "accounts",
        "api_keys",
        "installation",
    ):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_journal_change()")
