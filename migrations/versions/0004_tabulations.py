"""Tabulations: what the values of a draw are where it is of many groups at once."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_REFUSAL = "what the ledger has written stays as it is"


def upgrade() -> None:
    op.create_table(
        "tabulations",
        sa.Column("draw_id", sa.Text(), nullable=False),
        sa.Column("layout", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["draw_id"], ["draws.id"]),
        sa.PrimaryKeyConstraint("draw_id"),
    )
    for statement in _triggers():
        op.execute(statement)


def downgrade() -> None:
    """Back to tables without tabulations.

    Raises:
        Conflict: the ledger holds some, whose groups could then be drawn again.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM tabulations LIMIT 1").first() is not None:
        raise Conflict("the older version's tables cannot hold tabulations")
    op.drop_table("tabulations")


def _triggers() -> list[str]:
    """As for draws: a row is written once."""
    if op.get_bind().dialect.name == "postgresql":
        return [
            "CREATE TRIGGER tabulations_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON tabulations"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        ]
    refuse = f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    return [
        f"CREATE TRIGGER tabulations_fixed BEFORE UPDATE ON tabulations {refuse}",
        f"CREATE TRIGGER tabulations_no_delete BEFORE DELETE ON tabulations {refuse}",
        "CREATE TRIGGER tabulations_no_replace BEFORE INSERT ON tabulations"
        f" WHEN EXISTS (SELECT 1 FROM tabulations WHERE draw_id = NEW.draw_id) {refuse}",
    ]
