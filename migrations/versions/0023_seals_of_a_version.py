"""A row of the ledger may be sealed again, unchanged, when an operator begins a new version of the ledger."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_REFUSE = "SELECT RAISE(ABORT, 'what the ledger has written stays as it is')"
_OF_ACCOUNTS = (
    "budget", "totals", "state", "head_hash", "approval_above", "next_expiry", "releases", "partitions_drawn",
    "partitions_undeclared", "spending_sum", "caps", "cap_totals", "period_state", "allotted",
)  # fmt: skip
_ACCOUNT_BEFORE = (
    "OLD.seal IS NOT NULL AND (NEW.seal IS NULL OR NEW.spending_sum IS NULL OR NEW.head_seq < OLD.head_seq"
    " OR (NEW.head_seq = OLD.head_seq AND OLD.spending_sum IS NOT NULL))"
)
_OTHER_WINDOW = "NEW.account_id <> OLD.account_id OR NEW.place <> OLD.place"
_OTHER_ALLOTMENT = "NEW.account_id <> OLD.account_id OR NEW.child_id <> OLD.child_id"
_OTHER_COUNTER = (
    "NEW.release_id <> OLD.release_id OR NEW.mechanism <> OLD.mechanism OR NEW.repetition <> OLD.repetition"
    " OR coalesce(NEW.most, 0) <> coalesce(OLD.most, 0)"
)
_BEFORE = {
    "accounts_by_entry": ("accounts", _ACCOUNT_BEFORE),
    "window_totals_forward": ("window_totals", f"{_OTHER_WINDOW} OR NEW.seq <= OLD.seq"),
    "allotments_forward": ("allotments", f"{_OTHER_ALLOTMENT} OR NEW.seq <= OLD.seq"),
    "partitions_drawn_forward": (
        "partitions_drawn",
        f"{_OTHER_COUNTER} OR (OLD.seal IS NOT NULL AND NEW.seal IS NULL)"
        " OR NOT (NEW.drawn > OLD.drawn OR (NEW.drawn = OLD.drawn AND OLD.seal IS NULL AND NEW.seal IS NOT NULL))",
    ),
}


def upgrade() -> None:
    """A row may get another seal while everything else in it stays; otherwise it changes only with a later entry."""
    after = {
        "accounts_by_entry": (
            "accounts",
            "OLD.seal IS NOT NULL AND (NEW.seal IS NULL OR NEW.spending_sum IS NULL OR NEW.head_seq < OLD.head_seq OR"
            f" (NEW.head_seq = OLD.head_seq AND OLD.spending_sum IS NOT NULL AND ({_not_seal_alone(*_OF_ACCOUNTS)})))",
        ),
        "window_totals_forward": (
            "window_totals",
            f"{_OTHER_WINDOW} OR NEW.seq < OLD.seq"
            f" OR (NEW.seq = OLD.seq AND ({_not_seal_alone('committed', 'held', 'releases')}))",
        ),
        "allotments_forward": (
            "allotments",
            f"{_OTHER_ALLOTMENT} OR NEW.seq < OLD.seq"
            f" OR (NEW.seq = OLD.seq AND ({_not_seal_alone('plan', 'price', 'caps')}))",
        ),
        "partitions_drawn_forward": (
            "partitions_drawn",
            f"{_OTHER_COUNTER} OR NEW.drawn < OLD.drawn OR (OLD.seal IS NOT NULL AND NEW.seal IS NULL)"
            f" OR (NEW.drawn = OLD.drawn AND ({_not_seal_alone()}))",
        ),
    }
    for name, (table, condition) in after.items():
        _refuse(name, table, condition)


def downgrade() -> None:
    """Back to rows that are sealed once.

    Raises:
        Conflict: an operator began a new version of the ledger, whose seals the older version does not know.
    """
    begun = "SELECT 1 FROM installation_journal WHERE kind = 'mark_acknowledged' AND body LIKE '%\"sealed_again\"%'"
    if op.get_bind().execute(sa.text(f"{begun} LIMIT 1")).first() is not None:
        raise Conflict("the older version does not know the seals of a ledger that was acknowledged")
    for name, (table, condition) in _BEFORE.items():
        _refuse(name, table, condition)


def _not_seal_alone(*others: str) -> str:
    """Return the condition under which a change is not one of the seal alone."""
    like, unlike = ("IS NOT DISTINCT FROM", "IS DISTINCT FROM") if _on_postgresql() else ("IS", "IS NOT")
    return " OR ".join([f"NEW.seal {like} OLD.seal", *(f"NEW.{column} {unlike} OLD.{column}" for column in others)])


def _refuse(name: str, table: str, condition: str) -> None:
    on, act = "", f"WHEN {condition} BEGIN {_REFUSE}; END"
    if _on_postgresql():
        on, act = f" ON {table}", f"FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse_change()"
    op.execute(f"DROP TRIGGER {name}{on}")
    op.execute(f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} {act}")


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
