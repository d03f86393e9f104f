"""Draws and counts of partitions are sealed with the secret; counts stay; no entry has a number below 1."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_SEALED = ("draws", "partitions_drawn")
_NUMBERED = ("journal", "installation_journal", "releases", "release_tags", "draws", "descriptions")

_KEY = "NEW.release_id <> OLD.release_id OR NEW.mechanism <> OLD.mechanism OR NEW.repetition <> OLD.repetition"
_BACKWARD = f"NEW.drawn <= OLD.drawn OR {_KEY}"
# A count that is older than seals gets one without a draw, once.
_NOT_FORWARD = (
    f"{_KEY} OR coalesce(NEW.most, 0) <> coalesce(OLD.most, 0) OR (OLD.seal IS NOT NULL AND NEW.seal IS NULL)"
    " OR NOT (NEW.drawn > OLD.drawn OR (NEW.drawn = OLD.drawn AND OLD.seal IS NULL AND NEW.seal IS NOT NULL))"
)
_NOISY_CHANGED = "OLD.noisy_removed_at IS NOT NULL OR NEW.noisy_removed_at IS NULL"
_SEAL_CHANGED = "OLD.seal IS NOT NULL OR NEW.seal IS NULL"
_OF_NOISY = "UPDATE OF noisy, noisy_removed_at"


def upgrade() -> None:
    """Add the columns; what they hold takes the secret, and is written at the next start.

    Numbers are held to by triggers on both kinds: SQLite adds no constraint to a table, and PostgreSQL would read all
    of a journal for one, and stop at rows that ``verify`` is there to name.
    """
    for table in _SEALED:
        op.add_column(table, sa.Column("seal", sa.Text(), nullable=True))
    _drop_trigger("draws", "draws_noisy")
    _refuse("draws", "draws_noisy", _OF_NOISY, _NOISY_CHANGED)
    _refuse("draws", "draws_sealed", "UPDATE OF seal", _SEAL_CHANGED)
    _drop_trigger("partitions_drawn", "partitions_drawn_forward")
    _refuse("partitions_drawn", "partitions_drawn_forward", "UPDATE", _NOT_FORWARD)
    if _on_postgresql():
        op.execute(
            "CREATE TRIGGER partitions_drawn_stay BEFORE DELETE OR TRUNCATE ON partitions_drawn"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    else:
        same = "release_id = NEW.release_id AND mechanism = NEW.mechanism AND repetition = NEW.repetition"
        there = f"EXISTS (SELECT 1 FROM partitions_drawn WHERE {same})"  # what INSERT OR REPLACE would delete
        _refuse("partitions_drawn", "partitions_drawn_no_delete", "DELETE", "TRUE")
        _refuse("partitions_drawn", "partitions_drawn_no_replace", "INSERT", there)
    for table in _NUMBERED:
        _refuse(table, f"{table}_numbered", "INSERT", "NEW.seq < 1")


def downgrade() -> None:
    """Back to draws without seals.

    Raises:
        Conflict: there are some, beside which the older version would write others.
    """
    for table in _SEALED:
        if op.get_bind().exec_driver_sql(f"SELECT 1 FROM {table} WHERE seal IS NOT NULL LIMIT 1").first() is not None:
            raise Conflict("the older version's tables cannot hold draws that are sealed with the secret")
    for table in _NUMBERED:
        _drop_trigger(table, f"{table}_numbered")
    for name in ("stay",) if _on_postgresql() else ("no_delete", "no_replace"):
        _drop_trigger("partitions_drawn", f"partitions_drawn_{name}")
    _drop_trigger("partitions_drawn", "partitions_drawn_forward")
    _drop_trigger("draws", "draws_sealed")
    _drop_trigger("draws", "draws_noisy")
    for table in _SEALED:
        op.execute(f"ALTER TABLE {table} DROP COLUMN seal")
    _refuse("partitions_drawn", "partitions_drawn_forward", "UPDATE", _BACKWARD)
    _refuse("draws", "draws_noisy", "UPDATE", _NOISY_CHANGED)


def _drop_trigger(table: str, name: str) -> None:
    op.execute(f"DROP TRIGGER {name}" + (f" ON {table}" if _on_postgresql() else ""))


def _refuse(table: str, name: str, change: str, condition: str) -> None:
    if _on_postgresql():
        act = f"FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse_change()"
    else:
        act = f"WHEN {condition} BEGIN SELECT RAISE(ABORT, 'what the ledger has written stays as it is'); END"
    op.execute(f"CREATE TRIGGER {name} BEFORE {change} ON {table} {act}")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
