"""Noisy counts go when their time is over."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_REFUSAL = "what the ledger has written stays as it is"
_FIXED = "id, release_id, mechanism, partition, repetition, account_id, seq, size, noisy_hash, created_at"
# The one change of a draw: its noisy counts go, as a whole and once. That they are empty then the table says.
_OTHER_CHANGE = "OLD.noisy_removed_at IS NOT NULL OR NEW.noisy_removed_at IS NULL"
# SQLite adds a column with the constraints that it comes with, but no constraint to a table.
_COLUMN = "noisy_removed_at TEXT CONSTRAINT draws_noisy CHECK ((noisy_removed_at IS NOT NULL) = (length(noisy) = 0))"


def upgrade() -> None:
    op.execute(f"ALTER TABLE draws ADD COLUMN {_COLUMN}")
    kept = sa.text("noisy_removed_at IS NULL")
    op.create_index("draws_kept", "draws", ["created_at"], postgresql_where=kept, sqlite_where=kept)
    if _on_postgresql():
        refuse = "EXECUTE FUNCTION refuse_change()"
        op.execute("DROP TRIGGER draws_stay ON draws")
        op.execute(f"CREATE TRIGGER draws_stay BEFORE DELETE OR TRUNCATE ON draws FOR EACH STATEMENT {refuse}")
        op.execute(f"CREATE TRIGGER draws_fixed BEFORE UPDATE OF {_FIXED} ON draws FOR EACH STATEMENT {refuse}")
        op.execute(f"CREATE TRIGGER draws_noisy BEFORE UPDATE ON draws FOR EACH ROW WHEN ({_OTHER_CHANGE}) {refuse}")
    else:
        refuse = f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
        op.execute("DROP TRIGGER draws_fixed")
        op.execute(f"CREATE TRIGGER draws_fixed BEFORE UPDATE OF {_FIXED} ON draws {refuse}")
        op.execute(f"CREATE TRIGGER draws_noisy BEFORE UPDATE ON draws WHEN {_OTHER_CHANGE} {refuse}")


def downgrade() -> None:
    """Back to tables that hold every noisy count for ever.

    Raises:
        Conflict: some are gone, which the older version would take for a fault.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM draws WHERE noisy_removed_at IS NOT NULL LIMIT 1").first():
        raise Conflict("the older version's tables cannot hold draws whose noisy counts were removed")
    if _on_postgresql():
        refuse = "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        for trigger in ("draws_stay", "draws_fixed", "draws_noisy"):
            op.execute(f"DROP TRIGGER {trigger} ON draws")
        op.execute(f"CREATE TRIGGER draws_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON draws {refuse}")
        op.execute("ALTER TABLE draws DROP CONSTRAINT draws_noisy")  # SQLite's goes with the column that it came with
    else:
        for trigger in ("draws_noisy", "draws_fixed"):
            op.execute(f"DROP TRIGGER {trigger}")
        op.execute(f"CREATE TRIGGER draws_fixed BEFORE UPDATE ON draws BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END")
    op.drop_index("draws_kept", "draws")
    op.execute("ALTER TABLE draws DROP COLUMN noisy_removed_at")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
