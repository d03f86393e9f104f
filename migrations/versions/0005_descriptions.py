"""Descriptions: what people say of accounts and releases, one row an edit."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REFUSAL = "what the ledger has written stays as it is"


def upgrade() -> None:
    op.create_table(
        "descriptions",
        sa.Column("account_id", _INTEGER, nullable=False),
        sa.Column("seq", _INTEGER, nullable=False),
        sa.Column("release_id", sa.Text(), nullable=True),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"]),
        sa.PrimaryKeyConstraint("account_id", "seq"),
    )
    op.create_index("descriptions_of", "descriptions", ["account_id", "release_id", "seq"])
    budgets = sa.text("kind IN ('account_opened', 'budget_changed')")
    op.create_index("journal_budgets", "journal", ["account_id", "seq"], postgresql_where=budgets, sqlite_where=budgets)
    for statement in _triggers():
        op.execute(statement)


def downgrade() -> None:
    """Back to tables without descriptions.

    Raises:
        Conflict: the journal speaks of some, which the older version would not know.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM descriptions LIMIT 1").first() is not None:
        raise Conflict("the older version's tables cannot hold descriptions")
    op.drop_index("journal_budgets", "journal")
    op.drop_table("descriptions")


def _triggers() -> list[str]:
    """As for draws: a row is written once."""
    if op.get_bind().dialect.name == "postgresql":
        return [
            "CREATE TRIGGER descriptions_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON descriptions"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        ]
    refuse = f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    same = "account_id = NEW.account_id AND seq = NEW.seq"
    return [
        f"CREATE TRIGGER descriptions_fixed BEFORE UPDATE ON descriptions {refuse}",
        f"CREATE TRIGGER descriptions_no_delete BEFORE DELETE ON descriptions {refuse}",
        "CREATE TRIGGER descriptions_no_replace BEFORE INSERT ON descriptions"
        f" WHEN EXISTS (SELECT 1 FROM descriptions WHERE {same}) {refuse}",
    ]
