"""Read and write transactions, with one interface for SQLite and PostgreSQL.

An answered request must not be lost, and no effect may happen twice. So a write returns only after its commit. Where a
connection breaks at the commit, the next attempt first checks whether the previous one is in the database. The
parameters of statements never reach a message.
"""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import structlog
from sqlalchemy import Connection, Engine, Row, Select
from sqlalchemy.exc import SQLAlchemyError

from service.errors import OtherSchema, Unavailable
from service.ledger.storage.chain_points import ChainPoints
from service.ledger.storage.connections.boundaries import (
    OTHER_VERSION,
    begin_read,
    begin_write,
    commit,
    require_open,
    require_version,
)
from service.ledger.storage.connections.engines import session_settings
from service.ledger.storage.connections.failures import RETRIED, FailureKind, failure_of, refusal
from service.ledger.storage.connections.location import DatabaseLocation, place_of
from service.ledger.storage.connections.pools import AT_ONCE, READERS, Pools, open_pools
from service.ledger.storage.drawn_partitions import DrawnPartitions, OwnEntry, Place
from service.ledger.storage.group_commit import EFFECTS, Effects, GroupAborted, GroupCommit, NewEntry
from service.ledger.storage.newest_heads import KnownHead, NewestHeads
from service.ledger.storage.secret import Secret
from service.ledger.storage.transaction import DATABASE, LINKED, QUEUE, SINCE
from service.ledger.storage.waiting_line import Waiter, WaitingLine
from service.ledger.storage.walked_journals import WalkedJournals
from service.ledger.storage.writing_pace import WritingPace

T = TypeVar("T")
R = TypeVarTuple("R")
Values = TypeVar("Values", bound=dict[str, Any])

_PAUSES = (0.0, 0.0, 0.1, 0.4, 1.6)  # seconds before each attempt once a connection was lost: a restart's time
_LONGEST = 10.0  # seconds that a single statement may take on PostgreSQL
_LONGEST_LOOK = 2.0  # seconds, of each statement

_NOTHING = nullcontext()
_WENT_BACK = "the ledger lacks an entry that was committed; nothing is written"
_OTHER_SCHEMA = "the database's tables are not as the service made them; nothing is written"

_ROLLED_BACK = "the ledger lacks committed entries; nothing is written"  # as the log says it

_log = structlog.get_logger("service.database")


def open_database(url: str, *, lock_timeout: float = 30.0, writer_threads: int = 16) -> "Database":
    """Open the ledger's database, and create an SQLite file that does not exist.

    Args:
        lock_timeout: seconds that a transaction waits in total, in the queue and for locks.
        writer_threads: write transactions that run at once on PostgreSQL; on SQLite it is one.

    Raises:
        StartupRefused: the URL does not name a database that can hold the ledger.
        Unavailable: the SQLite file cannot be opened. PostgreSQL is first contacted when it is used.
    """
    pools = open_pools(url, lock_timeout, writer_threads)
    return Database(pools, lock_timeout)


class _UnderWay:
    """A number of blocks of code that run now, in any thread."""

    def __init__(self) -> None:
        self._number, self._changed = 0, threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._number += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._number -= 1
            self._changed.notify_all()

    def wait_for_none(self, seconds: float) -> bool:
        """Wait until none runs; return False where one still runs after some seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._number == 0, seconds)


class Database:
    """A database with its pools and the queues in front of them, which threads can share."""

    def __init__(self, pools: Pools, lock_timeout: float) -> None:
        self.pools = pools
        self.place = place_of(pools.writer.url)
        self.kind = pools.kind
        self.secret: Secret | None = None  # the secret that it is bound to, which seals the rows; None: not yet bound
        self.version: str | None = None  # of the tables: write transactions are refused on any other; None: any version
        self.lock_timeout = lock_timeout  # seconds that a transaction waits in total, in the queue and for locks
        self.writers = WaitingLine(pools.writers)
        self.readers = WaitingLine(READERS)
        # The context that each transaction runs in, by "read" or "write".
        self.around: Callable[[str], AbstractContextManager[object]] = lambda _: _NOTHING
        # Called first in each transaction; an error ends the transaction.
        self.begun: Callable[[Connection], None] = lambda _: None
        self.stopped: str | None = None  # the reason, once writing was stopped
        self.paused: str | None = None  # the reason while nothing is written for now
        # Returns the reason while nothing is written and no key is valid, because the mark's keeper gets no answers.
        self.unwatched: Callable[[], str | None] = lambda: None
        self._queues = WeakValueDictionary[int, WaitingLine]()  # of write transactions, by account, on PostgreSQL
        self.expiring: WeakValueDictionary[int, WaitingLine] = (
            WeakValueDictionary()
        )  # waiting to expire an account's holds
        self.holds_due = threading.Event()  # set when a request left expired reservations behind
        self.remembers = False  # whether entries are kept, for the high-water mark's keeper to take
        self._done = Effects()
        self.pace = WritingPace()
        self.newest = NewestHeads()  # heads that are known to be committed, by this process or by the high-water mark
        self.points = ChainPoints()  # entries that this process committed, or linked with those heads
        self.walked = WalkedJournals()  # what the texts say that entries are about
        self.drawn = DrawnPartitions()  # what the texts say that releases were drawn for
        self._made: set[str] = set()  # the keys that the installation's journal made or adopted, by key id
        self._ends: dict[str, str] = {}  # the moment from which each key is refused, whatever its row says, by key id
        self.followed: KnownHead | None = None  # the last entry of the installation's journal whose key ends are known
        self.followed_to = 0  # the number of the last entry examined; beyond `followed` if that entry is unsound
        self.seen_keys: Any = None  # `key_events.SeenKeys` of the last such entry up to which the keys were read
        self.seen_webhooks: Any = None  # `webhooks.SeenWebhooks`, likewise
        self._counting = threading.Lock()
        self._ended, self._commits = False, _UnderWay()

    @property
    def url(self) -> str:
        """Return the database's URL with the password, for another process of the service to open it."""
        return self.pools.writer.url.render_as_string(hide_password=False)

    def close(self) -> None:
        """Close the idle connections; connections in use close when they are returned to their pools."""
        self.pools.close()

    def counted(self) -> Counter[tuple[str, str]]:
        """Return the counts of actions in transactions that this process committed."""
        with self._counting:
            return self._done.counts.copy()

    def take_committed(self) -> list[NewEntry]:
        """Return the entries that this process committed, or was the first to read, since the last call."""
        with self._counting:
            taken, self._done.entries = self._done.entries, []
            return taken

    def note_read(self, entries: Iterable[NewEntry]) -> None:
        """Record entries that were read, as what is answered from them must not be lost unnoticed either."""
        if self.remembers:
            with self._counting:
                self._done.entries += entries

    def learn(self, entries: Sequence[NewEntry]) -> None:
        """Record entries that a helper was the first to read.

        Raises:
            Unavailable: one differs from the known entry of its number. All further writes are refused.
        """
        for entry in entries:
            known = self.newest.up_to(entry.account, entry.seq)
            if known is not None and known.seq == entry.seq and known.hash != entry.hash:
                raise self.went_back(entry.account, entry.seq)
        self.newest.add(KnownHead(entry.account, entry.seq, entry.hash) for entry in entries)
        self.note_read(entries)

    def put_back_committed(self, entries: list[NewEntry]) -> None:
        """Return entries to the list of committed ones after a failure, so that the next call takes them again."""
        with self._counting:
            self._done.entries += entries

    def stop(self, reason: str, *, event: str = _ROLLED_BACK, **said: object) -> None:
        """Refuse all further writes, because a rollback of the ledger or another schema was detected."""
        if self.stopped is None:
            _log.critical(event, reason=reason, **said)
            self.stopped = reason

    def begin_writing(self) -> None:
        """Admit writes again after ``end_writing``."""
        self._ended = False

    def end_writing(self, seconds: float) -> None:
        """Refuse all further writes, and wait until no commit is under way, for some seconds at most."""
        self._ended = True
        if not self._commits.wait_for_none(seconds):
            _log.error("a commit does not end")

    def refused(self) -> Unavailable | None:
        """Return the refusal of writes, while all are refused."""
        if self.stopped is not None:
            return Unavailable(self.stopped, retry_after=60)
        if self._ended:
            return Unavailable("the server stops")
        reason = self.paused or self.unwatched()
        return None if reason is None else Unavailable(reason)

    def remember_ends(self, ends: Mapping[str, str]) -> None:
        """Refuse keys from some moments on; an earlier moment that is known already stays."""
        with self._counting:
            self._ends |= {key: min(end, self._ends.get(key, end)) for key, end in ends.items()}

    def remember_made(self, key_id: str) -> None:
        """Accept a key that the installation's journal made."""
        self._made.add(key_id)

    def has_made(self, key_id: str) -> bool:
        """Return whether the installation's journal made a key, as far as this process has read it."""
        return key_id in self._made

    def has_ended(self, key_id: str, at: str) -> bool:
        """Return whether the installation's journal ended a key by a moment, as far as this process has read it."""
        end = self._ends.get(key_id)
        return end is not None and end <= at

    def has_committed(self) -> bool:
        """Return whether entries wait to be taken."""
        return bool(self._done.entries)

    def ask(self, statement: Select[*R], parameters: Mapping[str, str | int]) -> Row[*R] | None:
        """Return the one row of a single statement, or None.

        A single statement sees one moment of the database without a transaction around it. On PostgreSQL it takes two
        round trips, the first for the session's settings. On SQLite it takes less time than a hand-over to a thread.

        Raises:
            Unavailable: the database does not answer.
        """

        def answer() -> Row[*R] | None:
            with self.pools.asker.connect() as connection:
                if self.kind == "postgresql":
                    connection.exec_driver_sql(session_settings(connection, wait=AT_ONCE, limit=_LONGEST))
                else:
                    begin_read(connection, AT_ONCE, _LONGEST)
                    self._check(connection)
                return connection.execute(statement, parameters).one_or_none()

        return _persistent(answer, self.place)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read-only transaction that sees one moment of the database and waits for no writer.

        Raises:
            Unavailable: the database does not answer, or all readers are busy for too long.
        """
        with (
            self.around("read"),
            self.readers.place(time.monotonic() + self.lock_timeout),
            self._reading(self.pools.reader, wait=self.lock_timeout) as connection,
        ):
            yield connection

    @contextmanager
    def look(self, *, limited: bool = True) -> Iterator[Connection]:
        """Open a read-only transaction that waits neither for requests nor, for more than a second, for a lock.

        Args:
            limited: whether a statement ends after two seconds, on PostgreSQL.

        Raises:
            Unavailable: the database does not answer, or not in time.
        """
        limit = _LONGEST_LOOK if limited else 0
        with self.around("read"), self._reading(self.pools.asker, wait=AT_ONCE, limit=limit) as connection:
            yield connection

    @contextmanager
    def _reading(self, engine: Engine, *, wait: float, limit: float = 0) -> Iterator[Connection]:
        with self.newest.transaction() as since:
            connection = self._snapshot(engine, wait, limit, since)
            try:
                self._check(connection)
                yield connection
            except SQLAlchemyError as error:
                raise refusal(failure_of(error), self.place) from None
            finally:
                with suppress(SQLAlchemyError):  # a connection that breaks only now has already given all its answers
                    connection.close()

    def write(self, work: Callable[[Connection], T], *, is_committed: Callable[[Connection, T], bool]) -> T:
        """Run ``work`` in one write transaction and return its value once that is committed.

        ``work`` may run several times, each time on a database without traces of the earlier attempts. It runs again
        after a lost connection, a deadlock, or a race for a unique key. After a race the second run finds the key
        taken, because all work looks before it inserts.

        Args:
            is_committed: called as ``is_committed(connection, value)`` where a connection broke at the commit. It
                returns whether that attempt's value is in the database after all. If so, the value is returned and
                ``work`` does not run again.

        Raises:
            Unavailable: no lock in time, the database does not answer, its disk is full, or writing was stopped.
            Conflict: a unique key is still taken after the last attempt.
            Exception: any error that ``work`` raises, after a rollback.
        """
        if (refused := self.refused()) is not None:
            raise refused
        deadline = time.monotonic() + self.lock_timeout
        turn = Waiter(work)
        with self.around("write"), self.writers.place(deadline, turn):
            return self._attempt(work, is_committed, deadline) if turn.outcome is None else turn.outcome.result()

    def _attempt(
        self, work: Callable[[Connection], T], is_committed: Callable[[Connection, T], bool], deadline: float
    ) -> T:
        lock = secrets.randbits(63)
        unknown: list[tuple[T, Effects]] = []  # of attempts whose connection broke at the commit
        lost, shared = False, self.kind == "sqlite"  # PostgreSQL's transactions need not wait for each other
        for pause in _PAUSES:
            if lost:
                time.sleep(pause)
            committing, group, done = False, GroupCommit(self.writers), Effects()
            try:
                with (
                    self.newest.transaction() as since,
                    ExitStack() as queue,
                    self.pools.writer.connect() as connection,
                ):
                    self._begin_write(connection, deadline - time.monotonic(), lock)
                    connection.info.update({EFFECTS: done, DATABASE: self, SINCE: since, LINKED: {}})
                    for earlier, counts in unknown:
                        if is_committed(connection, earlier):
                            return self._count(earlier, counts)
                    if self.kind == "postgresql":
                        connection.info[QUEUE] = partial(self._wait_in_queue, queue, deadline)
                    value = work(connection)
                    require_open(connection)
                    if shared:
                        group.work(connection)
                    with self._commits:
                        # Stopped by a read of this transaction, or by another thread meanwhile.
                        if (refused := self.refused()) is not None:
                            raise refused
                        committing = True
                        commit(connection)
                        done.add(group.done)
                        self._count(value, done)
                    group.answer()
                    return value
            except GroupAborted:
                shared = False
                continue
            except SQLAlchemyError as error:
                failure = failure_of(error)
            finally:
                group.part(committing=committing)
            lost = lost or failure.kind is FailureKind.LOST
            if committing and failure.kind is FailureKind.LOST:
                unknown.append((value, done))
            if failure.kind not in RETRIED and not (lost and failure.kind is FailureKind.UNREACHABLE):
                break
        raise refusal(failure, self.place, unknown=bool(unknown))

    def _begin_write(self, connection: Connection, seconds: float, lock: int) -> None:
        begin_write(connection, seconds, lock, self.version)
        self._check(connection)
        if self.kind == "sqlite":
            require_version(connection, self.version)

    def _wait_in_queue(self, until_end: ExitStack, deadline: float, account_id: int) -> None:
        until_end.enter_context(self._queues.setdefault(account_id, WaitingLine(1)).place(deadline))

    def require_new(self, entries: Iterable[NewEntry]) -> None:
        """Refuse entries whose numbers this process has committed before, which means that the ledger was rolled back.

        Raises:
            Unavailable: there is such an entry. All further writes are refused.
        """
        for entry in entries:
            if entry.seq <= self.newest.number(entry.account):
                raise self.went_back(entry.account, entry.seq - 1)

    def require_present(self, head: KnownHead, moment: int | None) -> None:
        """Refuse a journal's head that was read, if the journal was further before or had another entry of this number.

        Args:
            moment: as in ``NewestHeads.went_back``.

        Raises:
            Unavailable: the head is older than, or differs from, a known one. All further writes are refused.
        """
        if self.newest.went_back(head, moment):
            raise self.went_back(head.account, head.seq)

    def went_back(self, account: str, seq: int) -> Unavailable:
        """Stop writing because a journal lacks an entry that was committed, and return the error to raise."""
        self.stop(_WENT_BACK, account=account, head=seq, known=self.newest.number(account))
        return Unavailable(_WENT_BACK, retry_after=60)

    def _check(self, connection: Connection) -> None:
        """Call ``begun``, before any other statement of a transaction."""
        try:
            self.begun(connection)
        except OtherSchema as other:
            raise self.other_schema(connection, other.fault) from None

    def other_schema(self, connection: Connection, fault: str) -> Unavailable:
        """Stop writing because the database has another schema, and return the error to raise.

        If the tables are of another version of the service, writing only pauses, until a look finds the expected ones.
        """
        try:
            require_version(connection, self.version)
        except Unavailable as refused:
            if self.paused is None:
                _log.error(OTHER_VERSION, fault=fault)
            self.paused = OTHER_VERSION
            return refused
        except SQLAlchemyError:  # they state no version
            pass
        self.stop(_OTHER_SCHEMA, event=_OTHER_SCHEMA, fault=fault)
        return OtherSchema(fault)

    def _count(self, value: T, done: Effects) -> T:
        heads = [KnownHead(entry.account, entry.seq, entry.hash) for entry in done.entries]
        self.newest.add(heads)
        self.points.add(heads)
        self.remember_ends(done.ends)
        own = (
            OwnEntry(one.account, Place(one.seq, one.hash), Place(one.seq - 1, one.previous)) for one in done.entries
        )
        self.drawn.note(own, done.drawn)
        done.drawn = []
        with self._counting:
            if not self.remembers:
                done.entries = []
            self._done.add(done)
        return value

    def _snapshot(self, engine: Engine, wait: float, limit: float, since: int) -> Connection:
        def begun() -> Connection:
            connection = engine.connect()
            try:
                begin_read(connection, wait, limit)
                connection.info.update({DATABASE: self, SINCE: since, LINKED: {}})
            except SQLAlchemyError:
                connection.close()
                raise
            return connection

        return _persistent(begun, self.place)


def _persistent(attempt: Callable[[], T], place: DatabaseLocation) -> T:
    """Run an attempt at reading, and repeat it while it finds its connection broken.

    Raises:
        Unavailable: the database does not answer.
    """
    for _ in _PAUSES:
        try:
            return attempt()
        except SQLAlchemyError as error:
            failure = failure_of(error)
        if failure.kind is not FailureKind.LOST:
            break
    raise refusal(failure, place)
