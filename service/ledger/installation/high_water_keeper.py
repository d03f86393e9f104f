"""Keeping the high-water mark: it is checked at the start and written behind the commits, within a second."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

from service.errors import ServiceError, StartupRefused
from service.ledger.installation import installation_journal
from service.ledger.installation.high_water import (
    INSTALLATION,
    HighWaterFile,
    Mark,
    Missing,
    last_entries,
    lost_entries,
    missing_entries,
    names_of,
    present_heads,
)
from service.ledger.journal.journal import BEFORE_FIRST, Broken, Head
from service.ledger.storage import clock
from service.ledger.storage.background import until_stopped
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import Made
from service.ledger.verification.backup import require_sound_file

_PAUSE = 0.5  # seconds between two looks at what was committed
_REFRESH = 120  # looks after which the time is written although nothing was committed
_EVERYTHING = 1200  # looks after which all journals are held against the mark, whoever changed them
_TOLERANCE = 60.0  # seconds that clocks differ by, and that this machine's may be set back by
_SHOWN = 20  # journals that a message names

_log = structlog.get_logger("service.high_water")

_ADVICE = (
    "If this is on purpose, as after a backup was restored, say so:"
    " python -m service acknowledge --reason TEXT. Otherwise stop, and restore the newest copy"
)


def check_mark(database: Database, file: HighWaterFile, *, check_file: bool = False) -> Mark | None:
    """Refuse a ledger that lacks entries of its high-water mark, and a clock that is behind it.

    From here on the process's time does not go back behind the mark, and no journal that it reads.

    Args:
        check_file: read all of an SQLite file whose server did not end in good order.

    Returns:
        The mark; None where there is none yet.

    Raises:
        StartupRefused: it does, or the mark cannot be used, or the file is damaged.
        Unavailable: the database does not answer.
    """
    mark = file.read()
    if mark is None:
        return None
    check_clock(mark)
    if check_file and mark.in_use:
        require_sound_file(database)
    with database.read() as connection:
        accounts = last_entries(connection)
        missing = missing_entries(connection, mark.heads, accounts)
    if missing:
        raise StartupRefused(
            f"the ledger is older than its high-water mark {file.path} of {mark.written_at}: {described(missing)}."
            f" {_ADVICE}"
        )
    ids = {name: account_id for account_id, name, *_ in accounts} | {INSTALLATION: installation_journal.NO_ACCOUNT}
    database.remember([Made(ids[name], head.seq, head.hash) for name, head in mark.heads.items()])
    return mark


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
        serves: False for a command, which advances the mark once and says nothing of whether a server is at work.
    """

    def __init__(self, database: Database, file: HighWaterFile, *, serves: bool = True) -> None:
        self._database, self.file, self._serves = database, file, serves
        self._failing, self._altered = False, list[str]()
        database.remembers = True
        self.written_at = clock.now()

    def advance(self, *, everything: bool = False, last: bool = False) -> None:
        """Write the heads of journals that this process added to, or of all; ``last`` as the server ends.

        Where a journal lacks the entry that is marked of it, or one that this process committed since the last look,
        or the account's row ends before it, the ledger was replaced by an older one, or rewritten: then nothing is
        written into the ledger any more, and of all entries the mark gets only those that were lost, so that the next
        start is refused too. What is there and could not be marked is looked for again each time until it is.

        Raises:
            BrokenMark: the mark cannot be read or written.
            Unavailable: the database does not answer.
        """
        made = self._database.take_committed()
        try:
            with self._database.read() as connection:  # after these were taken, so that all of them were committed
                lost = lost_entries(connection, made)
                names = names_of(connection, {entry.account_id for entry in made})
            if not lost:
                made = _last_of_each(made)  # enough to mark them, later if need be
                journals = None if everything or not self.file.path.exists() else list(names.values())
                lost, marked = self._advance(made, journals, last=last)
                names[installation_journal.NO_ACCOUNT] = INSTALLATION
                heads = {account_id: marked.get(name, BEFORE_FIRST) for account_id, name in names.items()}
                if self._database.stopped is None:
                    left = [entry for entry in made if heads[entry.account_id].seq < entry.seq]
                    self._database.put_back_committed(left)
            if lost:
                self._stop("an entry of the ledger that was just committed is not there; nothing is written", lost)
                gone = {one.journal: one.marked for one in sorted(lost, key=lambda one: one.marked.seq)}
                self.file.advance(gone, clock.now(), in_use=not last if self._serves else None)
        except BaseException:
            self._database.put_back_committed(made)
            raise

    def _advance(
        self, made: list[Made], journals: list[str] | None, *, last: bool
    ) -> tuple[list[Missing], dict[str, Head]]:
        """Write the heads of these journals, or of all, unless entries are missing.

        Returns:
            Which of these made were lost, and the heads as they are now marked, or later ones are.
        """
        if journals is None:
            mark = self.file.read()
            marked: Mapping[str, Head] = {} if mark is None else mark.heads
        else:
            marked = self.file.marked([*journals, INSTALLATION])
        # After the mark was read, so that all that is marked had been committed before this moment of the ledger.
        with self._database.read() as connection:
            accounts = last_entries(connection, journals)
            missing = missing_entries(connection, marked, accounts)
            heads = present_heads(connection, self.file.secret, accounts)
            lost = lost_entries(connection, made)  # again: what is marked instead of them must follow them
        if heads.altered and heads.altered != self._altered:
            names = [name or "the installation's journal" for name in heads.altered[:_SHOWN]]
            number = len(heads.altered)
            _log.error("heads that the service did not write; they are not marked", journals=names, number=number)
        self._altered = heads.altered
        if missing:
            self._stop("entries of the ledger are missing that were there before; nothing is written", missing)
        elif not lost:
            at = clock.now()
            self.file.advance(heads.sound, at, in_use=not last if self._serves else None)
            self.written_at = at
        return lost, heads.sound

    def _stop(self, reason: str, missing: list[Missing]) -> None:
        self._database.stop(reason, missing=described(missing))

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Advance now and then until the end of the block, and once more at its end."""
        with until_stopped(self._keep_advancing, "high-water mark"):
            yield

    def _keep_advancing(self, stopping: threading.Event) -> None:
        looks, last, sound = 0, False, True
        while not last:
            last, looks = stopping.wait(_PAUSE), looks + 1
            sound = self._follow_ends(sound=sound)
            if not (last or looks % _REFRESH == 0 or self._database.has_committed()):
                continue
            try:
                self.advance(everything=looks % _EVERYTHING == 0, last=last)
            except Exception as error:  # noqa: BLE001 - whatever is in the database, the mark is kept again afterwards
                if not self._failing:
                    detail = (error.for_operator or str(error)) if isinstance(error, ServiceError) else None
                    _log.error("high-water mark not written", error=type(error).__name__, detail=detail)
                self._failing = True
            else:
                self._failing = False
            if looks % _REFRESH == 0 and (behind := clock.seconds_behind()) > 1:
                _log.error("the system's clock was set back; time goes on without it", seconds=round(behind, 1))

    def _follow_ends(self, *, sound: bool) -> bool:
        """Learn which keys were ended, wherever that was done; whether the installation's journal is sound.

        Args:
            sound: whether it was at the last look, so that the log says it once.
        """
        try:
            installation_journal.follow(self._database, self.file.secret)
        except Broken as broken:
            if sound:
                _log.error("the installation's journal is not as the service wrote it", broken=str(broken))
            return False
        except ServiceError:  # the database does not answer, or the ledger went back, which the log says already
            return sound
        except Exception as error:  # noqa: BLE001 - likewise
            _log.error("the installation's journal was not followed", error=type(error).__name__)
        return True


def _last_of_each(made: list[Made]) -> list[Made]:
    """The last entry of each journal: what is still to be marked once all are known to be there."""
    return list({entry.account_id: entry for entry in sorted(made)}.values())
