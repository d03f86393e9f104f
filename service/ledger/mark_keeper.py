"""Keeping the high-water mark: it is checked at the start and written behind the commits, within a second."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from service.errors import ServiceError, StartupRefused
from service.ledger import clock
from service.ledger.backup import require_sound_file
from service.ledger.database import Database
from service.ledger.high_water import HighWaterFile, Mark, Missing, missing_entries, present_heads

_PAUSE = 0.5  # seconds between two looks at what was committed
_REFRESH = 120  # looks after which the time is written although nothing was committed
_TOLERANCE = 60.0  # seconds that clocks differ by, and that this machine's may be set back by
_SHOWN = 20  # journals that a message names

_log = structlog.get_logger("service.high_water")

_ADVICE = (
    "If this is on purpose, as after a backup was restored, say so:"
    " python -m service acknowledge --reason TEXT. Otherwise stop, and restore the newest copy"
)


def check_mark(database: Database, file: HighWaterFile, *, check_file: bool = False) -> None:
    """Refuse a ledger that lacks entries of its high-water mark, and a clock that is behind it.

    From here on the process's time does not go back behind the mark.

    Args:
        check_file: read all of an SQLite file whose server did not end in good order.

    Raises:
        StartupRefused: it does, or the mark cannot be used, or the file is damaged.
        Unavailable: the database does not answer.
    """
    mark = file.read()
    if mark is None:
        return
    check_clock(mark)
    if check_file and mark.in_use:
        require_sound_file(database)
    with database.read() as connection:
        missing = missing_entries(connection, mark.heads)
    if missing:
        raise StartupRefused(
            f"the ledger is older than its high-water mark {file.path} of {mark.written_at}: {described(missing)}."
            f" {_ADVICE}"
        )


def check_clock(mark: Mark) -> None:
    """Refuse a clock that is behind the mark, and let time go on from the mark where it is within a minute.

    Raises:
        StartupRefused: it is further behind.
    """
    now = clock.now()
    if clock.between(now, mark.written_at).total_seconds() > _TOLERANCE:
        raise StartupRefused(
            f"this machine's clock says {now}, but the high-water mark was written at {mark.written_at}: set the clock."
            " If it was ahead then and is right now, say so: python -m service acknowledge --reason TEXT"
        )
    clock.go_on_from(mark.written_at)


def described(missing: list[Missing]) -> str:
    """Say which journals lack entries, the first of them by name."""
    more = len(missing) - _SHOWN
    return "; ".join(map(str, missing[:_SHOWN])) + (f"; and {more} more" if more > 0 else "")


class MarkKeeper:
    """Writes a server's high-water mark while it serves.

    Attributes:
        file: where it is.
        written_at: the moment at which the mark was last written.
    """

    def __init__(self, database: Database, file: HighWaterFile) -> None:
        self._database, self.file = database, file
        self._failing = False
        self.written_at = clock.now()

    def advance(self, *, everything: bool = False, last: bool = False) -> None:
        """Write the heads of journals that this process added to, or of all; ``last`` as the server ends.

        Where the mark is ahead of the ledger, which was replaced by an older one then, writing is stopped.

        Raises:
            BrokenMark: the mark cannot be written.
            Unavailable: the database does not answer.
        """
        changed = self._database.take_changed_journals()
        try:
            with self._database.read() as connection:
                heads = present_heads(connection, None if everything or not self.file.path.exists() else changed)
            at = clock.now()
            ahead = self.file.advance(heads, at, in_use=not last)
            self.written_at = at
        except BaseException:
            self._database.put_back_changed_journals(changed)
            raise
        if ahead:  # by another process's entries, or by entries that are gone: only a later look can tell
            with self._database.read() as connection:
                missing = missing_entries(connection, ahead)
            if missing:
                self._stop(missing)

    def _stop(self, missing: list[Missing]) -> None:
        if self._database.stopped is None:
            _log.critical("ledger older than its high-water mark; nothing is written", missing=described(missing))
        self._database.stopped = "entries of the ledger are missing that were there before; nothing is written"

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Advance now and then until the end of the block, and once more at its end."""
        stopping = threading.Event()
        thread = threading.Thread(target=self._keep_advancing, args=(stopping,), name="high-water mark")
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    def _keep_advancing(self, stopping: threading.Event) -> None:
        looks, last = 0, False
        while not last:
            last, looks = stopping.wait(_PAUSE), looks + 1
            if not (last or looks % _REFRESH == 0 or self._database.has_changed_journals()):
                continue
            try:
                self.advance(last=last)
            except (ServiceError, OSError) as error:
                if not self._failing:
                    detail = error.for_operator if isinstance(error, ServiceError) else error.strerror
                    _log.error("high-water mark not written", error=type(error).__name__, detail=detail or str(error))
                self._failing = True
            else:
                self._failing = False
            if looks % _REFRESH == 0 and (behind := clock.seconds_behind()) > 1:
                _log.error("the system's clock was set back; time goes on without it", seconds=round(behind, 1))
