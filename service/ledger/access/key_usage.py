"""When keys were last used: noted in memory by every request, written by a thread, at most once an hour a key."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import structlog
from sqlalchemy import bindparam, or_, select, update

from service.errors import ServiceError
from service.ledger.storage import clock
from service.ledger.storage.background import until_stopped
from service.ledger.storage.database import Database
from service.ledger.storage.tables import ApiKey

_APART = timedelta(hours=1)  # between two moments that are written of one key
_PAUSE = 300.0  # seconds between looks at what was noted: so much a crash forgets

_log = structlog.get_logger("service.uses")

_READ = select(ApiKey.id, ApiKey.last_used_at)
_WRITE = (  # another server may have written a later moment since it was read
    update(ApiKey)
    .where(ApiKey.id == bindparam("key"), or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < bindparam("at")))
    .values(last_used_at=bindparam("at"))
)


class Uses:
    """What one server has seen of its keys; as many moments as there are keys."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[str, str] = {}  # of each key the last moment

    def note(self, key_id: str, at: str) -> None:
        """A key was used. One assignment: it is on every request's way."""
        self._seen[key_id] = at

    def write(self) -> int:
        """Write what is an hour later than what any server wrote before, in one transaction; how many keys that is.

        Where nothing is, no writer waits for it: it has only read.

        Raises:
            Unavailable: the ledger does not answer; the next time writes what this one did not.
        """
        seen = list(self._seen.items())  # in one step of the interpreter, while requests go on
        if not seen:
            return 0
        with self._database.read() as connection:
            written = {row.id: row.last_used_at for row in connection.execute(_READ)}
        due = [(key, at) for key, at in seen if (last := written.get(key)) is None or clock.later(last, _APART) <= at]
        if due:
            rows = [{"key": key, "at": at} for key, at in sorted(due)]
            # To write twice is the same as once.
            self._database.write(lambda connection: connection.execute(_WRITE, rows), landed=lambda *_: False)
        return len(due)

    @contextmanager
    def written(self) -> Iterator[None]:
        """Write now and then until the end of the block, and once more at its end."""
        with until_stopped(self._keep_writing, "uses"):
            yield

    def _keep_writing(self, stopping: threading.Event) -> None:
        last = False
        while not last:
            last = stopping.wait(_PAUSE)
            try:
                self.write()
            except ServiceError as error:
                _log.warning("uses", error=type(error).__name__, detail=error.for_operator)
