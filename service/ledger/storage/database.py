"""One way to read and one way to write, the same on SQLite and on PostgreSQL.

What a request is answered with must not be lost, and nothing may happen twice: a write returns
only after its commit, and where a connection breaks at the commit the next attempt first finds out
whether the last one is in the database. Statements' parameters never reach a message.
"""

import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, cast
from weakref import WeakValueDictionary

import psycopg
import structlog
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, CursorResult, Engine, Row, Select
from sqlalchemy.exc import DataError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from service.errors import StartupRefused, Unavailable
from service.ledger.storage.engines import make_sqlite_file, postgresql_engine, sqlite_engine
from service.ledger.storage.failures import RETRIED, Kind, failure_of, refusal
from service.ledger.storage.group_commit import TALLY, Company, Made, Parted, Tally
from service.ledger.storage.location import Place, place_of
from service.ledger.storage.newest_heads import Newest
from service.ledger.storage.secret import Secret
from service.ledger.storage.waiting_line import Queue, Turn
from service.settings import read_url

T = TypeVar("T")
R = TypeVarTuple("R")
Values = TypeVar("Values", bound=dict[str, Any])

_PAUSES = (0.0, 0.0, 0.1, 0.4, 1.6)  # seconds before each attempt once a connection was lost: a restart's time
_READERS = 16  # read transactions at one time, in a pool of their own
_ASKERS = 8  # single statements at one time, likewise: whatever else waits, they do not
_AT_ONCE = 1.0  # seconds that a single statement waits for SQLite, which locks readers out for a recovery's time only

# On PostgreSQL each transaction begins in one round trip, which also tells whether the connection is alive.
_READ_POSTGRESQL = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# All attempts of one write take the same advisory lock, so the next one starts only when the server is done with the
# last, however its connection broke. A session that died without a word must not keep its accounts locked until TCP
# notices, hence the limit on idling, a minute. And noise must not be published that a power cut makes the ledger
# forget, hence no asynchronous commit, even where the server's other databases want it.
_WRITE_POSTGRESQL = """\
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = {wait};
SET LOCAL idle_in_transaction_session_timeout = 60000;
SELECT pg_advisory_xact_lock({lock}),
       CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"""
# Tables of another version than this server's fail the cast. Reading the version also locks its table for the
# transaction, so that a migration waits for it, and it for a migration.
_OF_VERSION_POSTGRESQL = """,
       CAST((SELECT CASE version_num WHEN '{version}' THEN '1' ELSE 'another' END FROM alembic_version) AS integer)"""
_VERSION_SQLITE = "SELECT version_num FROM alembic_version"
_READ_SQLITE = "BEGIN"
_WRITE_SQLITE = "BEGIN IMMEDIATE"
_WAIT_STEP, _WAIT_SET = 500, "busy_timeout"  # milliseconds, and where a connection's present wait is noted
_NOTHING = nullcontext()
_DATABASE = "database"  # where a connection has what it is a connection of
_SINCE = "since"  # where it has which heads were known to be committed before its transaction began
_WENT_BACK = "the ledger went back: an entry that was committed is not there; nothing is written"

_log = structlog.get_logger("service.database")


def open_database(url: str, *, lock_timeout: float = 30.0, writer_threads: int = 16) -> "Database":
    """Open the ledger's database; an SQLite file that does not exist is made.

    ``lock_timeout`` is in seconds; ``writer_threads`` write transactions run at once on PostgreSQL,
    one on SQLite.

    Raises:
        StartupRefused: the URL is not one of a database that can hold the ledger.
        Unavailable: the SQLite file cannot be opened. (PostgreSQL is not asked before it is used.)
    """
    try:
        parsed = read_url(url)
    except ValueError as error:
        raise StartupRefused(str(error)) from None
    kind = parsed.get_backend_name()
    if kind == "sqlite" and parsed.database not in {None, "", ":memory:"} and not parsed.query:
        make_sqlite_file(Path(str(parsed.database)), lock_timeout)
        writer = sqlite_engine(parsed, 1, lock_timeout, read_only=False)
        reader = sqlite_engine(parsed, _READERS, lock_timeout, read_only=True)
        asker = sqlite_engine(parsed, _ASKERS, _AT_ONCE, read_only=True)
        return Database(kind, writer, reader, asker, 1, lock_timeout)
    if kind == "postgresql":
        writer = postgresql_engine(parsed, writer_threads, read_only=False)
        reader = postgresql_engine(parsed, _READERS, read_only=True)
        asker = postgresql_engine(parsed, _ASKERS, read_only=True)
        return Database(kind, writer, reader, asker, writer_threads, lock_timeout)
    raise StartupRefused("expected the URL of an SQLite file, without options, or of a PostgreSQL database")


class Connections(NamedTuple):
    """The connections of a pool."""

    in_use: int
    idle: int


class Database:
    """A database with its pools and the queues in front of them; safe to share between threads."""

    def __init__(
        self, kind: str, writer: Engine, reader: Engine, asker: Engine, writers: int, lock_timeout: float
    ) -> None:
        self.place = place_of(writer.url)
        self.kind = kind  # "sqlite" or "postgresql"
        self.secret: Secret | None = None  # that it is bound to, with which accounts' rows are sealed
        self.version: str | None = None  # of the tables: write transactions are refused on any other; None: on none
        self.lock_timeout = lock_timeout  # seconds that a transaction waits in all, in the queue and for locks
        self.writers = Queue(writers)
        self.readers = Queue(_READERS)
        # What each transaction happens in, by whether it reads or writes.
        self.around: Callable[[str], AbstractContextManager[object]] = lambda _: _NOTHING
        self._writer, self._reader, self._asker = writer, reader, asker
        self.stopped: str | None = None  # why nothing is written any more, where that is so
        self.expiring: WeakValueDictionary[int, Queue] = WeakValueDictionary()  # who lets an account's holds expire
        self.holds_due = threading.Event()  # somebody left some that are to expire
        self.remembers = False  # the entries that it commits, for a keeper of the mark, who takes them
        self._done = Tally()
        self.newest = Newest()  # heads that are known to be committed, by this process or by the high-water mark
        self._ends: dict[str, str] = {}  # from when on a key is refused whatever its row says, by its id
        self.followed: Made | None = None  # the last entry of the installation's journal whose ends of keys it knows
        self.followed_to = 0  # the number of the last one that it looked at; greater where that one is not sound
        self._counting = threading.Lock()

    @property
    def url(self) -> str:
        """Where it is, with the password: for another process of ours that opens it too."""
        return self._writer.url.render_as_string(hide_password=False)

    def close(self) -> None:
        """Close the connections that are not in use; those in use close when they are given back."""
        for engine in (self._writer, self._reader, self._asker):
            engine.dispose()

    def counted(self) -> Counter[tuple[str, str]]:
        """What was tallied in transactions that this process committed."""
        with self._counting:
            return self._done.counts.copy()

    def take_committed(self) -> list[Made]:
        """The entries that this process committed since the last call, if it remembers them."""
        with self._counting:
            taken, self._done.entries = self._done.entries, []
            return taken

    def put_back_committed(self, entries: list[Made]) -> None:
        """Have the next call return these too: they could not be dealt with."""
        with self._counting:
            self._done.entries += entries

    def remember(self, heads: Iterable[Made]) -> None:
        """Know heads to be committed, as this process's own are."""
        with self._counting:
            self.newest.add(heads)

    def known_after(self, moment: int) -> tuple[int, list[Made]]:
        """Return the moment of what is known to be committed, and what was not yet known at an earlier one."""
        with self._counting:
            return self.newest.moment, self.newest.after(moment)

    def stop(self, reason: str, **said: object) -> None:
        """Write nothing any more: the ledger went back."""
        if self.stopped is None:
            _log.critical("the ledger went back; nothing is written", reason=reason, **said)
            self.stopped = reason

    def remember_ends(self, ends: Mapping[str, str]) -> None:
        """Refuse keys from some moments on, or from earlier ones that are known."""
        with self._counting:
            self._ends |= {key: min(end, self._ends.get(key, end)) for key, end in ends.items()}

    def has_ended(self, key_id: str, at: str) -> bool:
        """Whether the installation's journal ended a key by a moment, as far as this process has seen."""
        end = self._ends.get(key_id)
        return end is not None and end <= at

    def has_committed(self) -> bool:
        """Whether there are any."""
        return bool(self._done.entries)

    def connections(self) -> dict[str, Connections]:
        """The pools, and how many of their connections are in use."""
        pools = {"writers": self._writer.pool, "readers": self._reader.pool, "askers": self._asker.pool}
        return {
            name: Connections(cast("QueuePool", pool).checkedout(), cast("QueuePool", pool).checkedin())
            for name, pool in pools.items()
        }

    def ask(self, statement: Select[*R], parameters: Mapping[str, str | int]) -> Row[*R] | None:
        """The one row of a statement, or None; a statement alone sees one moment without a transaction around it.

        On PostgreSQL it takes one round trip, on SQLite less time than handing it to a thread would.

        Raises:
            Unavailable: the database does not answer.
        """

        def answer() -> Row[*R] | None:
            with self._asker.connect() as connection:
                return connection.execute(statement, parameters).one_or_none()

        return _persistent(answer, self.place)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the database, can change nothing and waits for no writer.

        Raises:
            Unavailable: the database does not answer, or all readers are busy for too long.
        """
        with self.around("read"), self.readers.place(time.monotonic() + self.lock_timeout):
            connection = self._snapshot()
            try:
                yield connection
            except SQLAlchemyError as error:
                raise refusal(failure_of(error), self.place) from None
            finally:
                with suppress(SQLAlchemyError):  # one that breaks only now has answered all that it was asked
                    connection.close()

    def write(self, work: Callable[[Connection], T], *, landed: Callable[[Connection, T], bool]) -> T:
        """Run ``work`` in one write transaction and return its value once that is committed.

        ``work`` may run several times, each time on a database without the traces of the times
        before: after a lost connection, a deadlock, or a race for a unique key, which the second
        run finds taken because every work looks before it inserts. Where a connection breaks at
        the commit, ``landed(connection, value)`` says whether that attempt's value is in the
        database after all; if so it is returned and ``work`` does not run again.

        Raises:
            Unavailable: no lock in time, the database does not answer, its disk is full, or writing was stopped.
            Conflict: a unique key is still taken after the last attempt.
            Whatever ``work`` raises, after a rollback.
        """
        if self.stopped is not None:
            raise Unavailable(self.stopped, retry_after=60)
        deadline = time.monotonic() + self.lock_timeout
        turn = Turn(work)
        with self.around("write"), self.writers.place(deadline, turn):
            return self._attempt(work, landed, deadline) if turn.outcome is None else turn.outcome.result()

    def _attempt(self, work: Callable[[Connection], T], landed: Callable[[Connection, T], bool], deadline: float) -> T:
        lock = secrets.randbits(63)
        unknown: list[tuple[T, Tally]] = []  # of attempts that broke at their commit
        lost, shared = False, self.kind == "sqlite"  # PostgreSQL's transactions need not wait for each other
        for pause in _PAUSES:
            if lost:
                time.sleep(pause)
            committing, company, since = False, Company(self.writers), self.newest.moment
            try:
                with self._writer.connect() as connection:
                    self._begin_write(connection, deadline, lock)
                    for earlier, counts in unknown:
                        if landed(connection, earlier):
                            return self._count(earlier, counts)
                    done = Tally()
                    connection.info.update({TALLY: done, _DATABASE: self, _SINCE: since})
                    value = work(connection)
                    self._require_transaction(connection)
                    if shared:
                        company.work(connection)
                    if self.stopped is not None:  # by what was read in it, or by somebody else meanwhile
                        raise Unavailable(self.stopped, retry_after=60)
                    committing = True
                    self._commit(connection)
                    done.add(company.done)
                    self._count(value, done)
                    company.answer()
                    return value
            except Parted:
                shared = False
                continue
            except SQLAlchemyError as error:
                failure = failure_of(error)
            finally:
                company.part(committing=committing)
            lost = lost or failure.kind is Kind.LOST
            if committing and failure.kind is Kind.LOST:
                unknown.append((value, done))
            if failure.kind not in RETRIED and not (lost and failure.kind is Kind.UNREACHABLE):
                break
        raise refusal(failure, self.place, unknown=bool(unknown))

    def require_new(self, entries: Iterable[Made]) -> None:
        """Refuse entries whose numbers this process has committed before: the ledger went back since then.

        Raises:
            Unavailable: there is one; from now on nothing is written any more.
        """
        for entry in entries:
            if entry.seq <= self.newest.number(entry.account_id):
                raise self.went_back(entry.account_id, entry.seq - 1)

    def require_present(self, account_id: int, seq: int, digest: str, moment: int | None) -> None:
        """Refuse a journal's head that was read, where it was further before or had another of this number.

        Args:
            moment: as in ``Newest.went_back``.

        Raises:
            Unavailable: it was, or had; from now on nothing is written any more.
        """
        if self.newest.went_back(account_id, seq, digest, moment):
            raise self.went_back(account_id, seq)

    def went_back(self, account_id: int, seq: int) -> Unavailable:
        """Write nothing any more, as a journal ends with an entry before one that was committed; say so."""
        self.stop(_WENT_BACK, account=account_id, head=seq, known=self.newest.number(account_id))
        return Unavailable(_WENT_BACK, retry_after=60)

    def _count(self, value: T, done: Tally) -> T:
        self.remember(done.entries)
        self.remember_ends(done.ends)
        with self._counting:
            if not self.remembers:
                done.entries = []
            self._done.add(done)
        return value

    def _snapshot(self) -> Connection:
        begin = _READ_SQLITE if self.kind == "sqlite" else _READ_POSTGRESQL

        def begun() -> Connection:
            connection, since = self._reader.connect(), self.newest.moment
            try:
                connection.exec_driver_sql(begin)
                connection.info.update({_DATABASE: self, _SINCE: since})
            except SQLAlchemyError:
                connection.close()
                raise
            return connection

        return _persistent(begun, self.place)

    def _begin_write(self, connection: Connection, deadline: float, lock: int) -> None:
        wait = max(1, round(1000 * (deadline - time.monotonic())))  # milliseconds; 0 would mean for ever
        if self.kind == "sqlite":
            # The queue has let this transaction in at once more often than not: then the wait is what it was.
            wait = -(-wait // _WAIT_STEP) * _WAIT_STEP
            if connection.info.get(_WAIT_SET) != wait:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait}")
                connection.info[_WAIT_SET] = wait
            connection.exec_driver_sql(_WRITE_SQLITE)
            if self.version is not None and connection.exec_driver_sql(_VERSION_SQLITE).scalar() != self.version:
                raise _other_version()
            return
        begin = _WRITE_POSTGRESQL.format(wait=wait, lock=lock)
        if self.version is not None:
            begin += _OF_VERSION_POSTGRESQL.format(version=self.version)
        try:
            connection.exec_driver_sql(begin)
        except DataError:
            raise _other_version() from None

    def _commit(self, connection: Connection) -> None:
        raw = connection.connection.driver_connection  # now: of one that broke SQLAlchemy gives none
        try:
            connection.commit()
        except SQLAlchemyError:
            if isinstance(raw, sqlite3.Connection):
                raw.rollback()  # SQLite keeps a transaction open whose commit failed, and SQLAlchemy takes it for over
            raise

    def _require_transaction(self, connection: Connection) -> None:
        """Refuse to commit what a failed statement has undone already: PostgreSQL would answer such a COMMIT without
        an error, and SQLite some.

        Raises:
            RuntimeError: the work went on after a statement had failed.
        """
        raw = connection.connection.driver_connection
        if isinstance(raw, sqlite3.Connection):
            sound = raw.in_transaction
        else:
            sound = isinstance(raw, psycopg.Connection) and raw.info.transaction_status is TransactionStatus.INTRANS
        if not sound:
            raise RuntimeError("a statement failed and the work went on; nothing was committed")


def secret_of(connection: Connection) -> Secret:
    """Return the secret that the connection's database is bound to.

    Raises:
        RuntimeError: it was bound to none.
    """
    return bound_secret(connection.info.get(_DATABASE))


def bound_secret(database: Database | None) -> Secret:
    """Return the secret that a database is bound to.

    Raises:
        RuntimeError: it was bound to none.
    """
    if database is None or database.secret is None:
        raise RuntimeError("the database was bound to no secret, without which no account can be read")
    return database.secret


def leave_holds(connection: Connection) -> None:
    """Leave holds whose time is over to the thread that lets them expire, if the process has one."""
    database: Database | None = connection.info.get(_DATABASE)
    if database is not None:
        database.holds_due.set()


def tally(connection: Connection, what: str, of: str = "", number: int = 1) -> None:
    """Count something that this write transaction does; it counts once that is committed."""
    done: Tally | None = connection.info.get(TALLY)
    if done is not None:
        done.counts[what, of] += number


def note_ends(connection: Connection, ends: Mapping[str, str]) -> None:
    """Note from which moments on this write transaction ends keys; it counts once that is committed."""
    done: Tally | None = connection.info.get(TALLY)
    if done is not None:
        done.ends |= ends


def note_entries(connection: Connection, entries: Sequence[Made]) -> None:
    """Note what this write transaction adds to journals; it counts once that is committed.

    Raises:
        Unavailable: this process has committed entries of these numbers before.
    """
    database: Database | None = connection.info.get(_DATABASE)
    if database is not None:
        database.require_new(entries)
        done: Tally = connection.info[TALLY]
        done.entries += entries


def require_present(connection: Connection, account_id: int, seq: int, digest: str, *, locked: bool = False) -> None:
    """Refuse a journal's head that was read in this transaction, where the journal was further before.

    Args:
        locked: whether the transaction holds a lock without which nobody adds to the journal.

    Raises:
        Unavailable: it was, or had another entry of this number; from now on nothing is written any more.
    """
    info = connection.info
    if _SINCE in info:
        info[_DATABASE].require_present(account_id, seq, digest, None if locked else info[_SINCE])


def newest_known(connection: Connection, account_id: int) -> Made | None:
    """Return the newest head of a journal that this transaction must find in it, if one is known."""
    info = connection.info
    return info[_DATABASE].newest.committed(account_id, info[_SINCE]) if _SINCE in info else None


def require_written(result: CursorResult[Any], number: int) -> None:
    """Make sure that a statement wrote as many rows as it was given: a trigger can drop rows without an error.

    Raises:
        RuntimeError: it wrote another number of them; then nothing is committed.
    """
    if result.rowcount != number:
        raise RuntimeError(f"the database wrote {result.rowcount} rows of {number}; nothing was committed")


def batch(rows: Sequence[Values]) -> Values | Sequence[Values]:
    """Rows for one statement; a single one is not a batch, which costs both drivers more."""
    return rows[0] if len(rows) == 1 else rows


def _other_version() -> Unavailable:
    return Unavailable(
        "the database is of another version of the service than this server, which changes nothing in it",
        retry_after=60,
        for_operator="the database was migrated to another version of the service: replace this server by one of that",
    )


def _persistent(attempt: Callable[[], T], place: Place) -> T:
    """What an attempt at reading gives, made again where it found its connection broken.

    Raises:
        Unavailable: the database does not answer.
    """
    for _ in _PAUSES:
        try:
            return attempt()
        except SQLAlchemyError as error:
            failure = failure_of(error)
        if failure.kind is not Kind.LOST:
            break
    raise refusal(failure, place)
