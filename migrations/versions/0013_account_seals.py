"""Accounts, releases and holds are sealed with the secret; how many partitions were drawn only grows."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_SEALED = ("accounts", "releases", "holds")
_WITHOUT_ENTRY = "NEW.head_seq <= OLD.head_seq"
_UNSEALED = f"OLD.seal IS NOT NULL AND ({_WITHOUT_ENTRY} OR NEW.seal IS NULL)"  # one without a seal serves nobody


_BACKWARD = (
    "NEW.drawn <= OLD.drawn OR NEW.release_id <> OLD.release_id OR NEW.mechanism <> OLD.mechanism"
    " OR NEW.repetition <> OLD.repetition"
)


def upgrade() -> None:
    """Add the columns; what they hold takes the secret, and is written at the next start."""
    for table in _SEALED:
        op.add_column(table, sa.Column("seal", sa.Text(), nullable=True))
    _drop_trigger("accounts", "accounts_by_entry")
    _refuse_updates("accounts", "accounts_by_entry", _UNSEALED)
    _refuse_updates("partitions_drawn", "partitions_drawn_forward", _BACKWARD)


def downgrade() -> None:
    """Back to accounts without seals.

    Raises:
        Conflict: there are some, which the older version would let get stale.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM accounts WHERE seal IS NOT NULL LIMIT 1").first() is not None:
        raise Conflict("the older version's tables cannot hold accounts that are sealed with the secret")
    _drop_trigger("partitions_drawn", "partitions_drawn_forward")
    _drop_trigger("accounts", "accounts_by_entry")
    _refuse_updates("accounts", "accounts_by_entry", _WITHOUT_ENTRY)
    for table in _SEALED:
        op.execute(f"ALTER TABLE {table} DROP COLUMN seal")


def _drop_trigger(table: str, name: str) -> None:
    op.execute(f"DROP TRIGGER {name}" + (f" ON {table}" if _on_postgresql() else ""))


def _refuse_updates(table: str, name: str, condition: str) -> None:
    if _on_postgresql():
        act = f"FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse_change()"
    else:
        act = f"WHEN {condition} BEGIN SELECT RAISE(ABORT, 'what the ledger has written stays as it is'); END"
    op.execute(f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} {act}")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
