"""The installation has a journal, append-only as those of the accounts."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REFUSAL = "what the ledger has written stays as it is"


def upgrade() -> None:
    op.create_table(
        "installation_journal",
        sa.Column("seq", _INTEGER, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("seal", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    table = "installation_journal"
    if op.get_bind().dialect.name == "postgresql":
        refuse = "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        op.execute(f"CREATE TRIGGER {table}_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} {refuse}")
        return
    refuse = f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    op.execute(f"CREATE TRIGGER {table}_fixed BEFORE UPDATE ON {table} {refuse}")
    op.execute(f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refuse}")
    same = f"WHEN EXISTS (SELECT 1 FROM {table} WHERE seq = NEW.seq)"  # what INSERT OR REPLACE would delete
    op.execute(f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} {same} {refuse}")


def downgrade() -> None:
    """Back to tables without the journal.

    Raises:
        Conflict: it has entries, which would be lost.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM installation_journal LIMIT 1").first() is not None:
        raise Conflict("the older version's tables cannot hold the installation's journal")
    op.drop_table("installation_journal")
