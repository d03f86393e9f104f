"""Retention: noisy counts are removed after a number of days, and the rest of a draw stays.

The journal and the draw's row keep the facts of the draw and its hash, so that nothing can be drawn twice.
"""

from itertools import accumulate

from sqlalchemy import Connection, Select, func, select, update

from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Draw

_AT_ONCE = 100  # draws
_BYTES_AT_ONCE = 1 << 26  # of the draws together, except one larger draw: a writer waits as long as they take


def remove_noisy(database: Database, before: str, at: str) -> int:
    """Remove the noisy counts of draws made before a moment.

    Returns:
        The number of draws, limited to one transaction's.
    """

    def work(connection: Connection) -> int:
        due = connection.execute(_due(before).with_for_update(skip_locked=True)).all()
        bytes_before = accumulate((row.bytes for row in due), initial=0)
        ids = [row.id for row, summed in zip(due, bytes_before, strict=False) if summed < _BYTES_AT_ONCE]
        # As many as the statement found: the caller goes on until there are none.
        return connection.execute(update(Draw).where(Draw.id.in_(ids)).values(noisy=b"", noisy_removed_at=at)).rowcount

    with database.read() as connection:  # without a write transaction, which would wait in the queue of the charges
        if connection.execute(_due(before)).first() is None:
            return 0
    return database.write(work, is_committed=lambda *_: False)


def is_removal(at: str, drawn_at: str) -> bool:
    """Return whether noisy counts can have been removed at this moment; the journal has no entry of a removal.

    Args:
        at: the stated moment of the removal.
        drawn_at: the moment of the draw.
    """
    return clock.is_stamp(at) and at > drawn_at


def _due(before: str) -> Select[str, int]:
    kept = Draw.noisy_removed_at.is_(None)
    size = func.length(Draw.noisy).label("bytes")
    return select(Draw.id, size).where(kept, Draw.created_at < before).order_by(Draw.created_at).limit(_AT_ONCE)
