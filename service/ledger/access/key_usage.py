"""Last uses of keys: recorded in memory by every request, written by a thread at most once an hour for each key.

The first use is written within seconds, so that nobody takes a key in use for one that never was.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import structlog
from sqlalchemy import bindparam, or_, select, update

from service.ledger.storage import clock
from service.ledger.storage.background import until_stopped
from service.ledger.storage.database import Database
from service.ledger.storage.tables import ApiKey

_APART = timedelta(hours=1)  # between two written moments of one key
_PAUSE = 10.0  # seconds between writes: a crash forgets at most so much

_log = structlog.get_logger("service.uses")

_READ = select(ApiKey.id, ApiKey.last_used_at)
_WRITE = (  # another server may have written a later moment since the row was read
    update(ApiKey)
    .where(ApiKey.id == bindparam("key"), or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < bindparam("at")))
    .values(last_used_at=bindparam("at"))
)


class KeyUsage:
    """The keys that one server has seen in use, with one moment for each key."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[str, str] = {}  # the last moment of each key
        self._written: dict[str, object] = {}  # the moment in each key's row, as it was read or written last

    def note(self, key_id: str, at: str) -> None:
        """Record the use of a key. It is one assignment, because every request does it."""
        self._seen[key_id] = at

    def write(self) -> int:
        """Write the moments that are an hour later than those of any server, in one transaction.

        If no key was used an hour after what is known of its row, it does nothing; otherwise it reads the rows first.

        Returns:
            The number of keys written.

        Raises:
            Unavailable: the ledger does not answer; the next call writes these moments.
        """
        seen = list(self._seen.items())  # atomic in the interpreter, while requests continue
        if not any(_is_due(self._written.get(key), at) for key, at in seen):
            return 0
        with self._database.read() as connection:
            self._written = {row.id: row.last_used_at for row in connection.execute(_READ)}
        due = [(key, at) for key, at in seen if _is_due(self._written.get(key), at)]
        if due:
            rows = [{"key": key, "at": at} for key, at in sorted(due)]
            # Repeating this write has no further effect.
            self._database.write(lambda connection: connection.execute(_WRITE, rows), is_committed=lambda *_: False)
            self._written |= dict(due)
        return len(due)

    @contextmanager
    def written(self) -> Iterator[None]:
        """Write the uses periodically until the block ends, and once more at its end."""
        with until_stopped(self._keep_writing, "uses"):
            yield

    def _keep_writing(self, stopping: threading.Event) -> None:
        last = False
        while not last:
            last = stopping.wait(_PAUSE)
            try:
                self.write()
            except Exception as error:  # noqa: BLE001 - no content of the database may end the thread
                _log.warning("uses", error=type(error).__name__, detail=getattr(error, "for_operator", None))


def _is_due(last: object, at: str) -> bool:
    """Return whether a use is long enough after the last one, or the row does not tell when that was."""
    return not (isinstance(last, str) and clock.is_stamp(last)) or clock.later(last, _APART) <= at
