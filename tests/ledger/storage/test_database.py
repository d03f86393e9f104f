"""Reading and writing: snapshots, order, waiting, retries, and what a caller is told."""

import contextlib
import sqlite3
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DBAPIError

from service.errors import Conflict, StartupRefused, Unavailable
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.transaction import count_metric
from service.ledger.storage.waiting_line import WaitingLine
from tests.ledger.marks import PATIENCE, count, never, write
from tests.postgres_server import libpq_url, session
from tests.waiting import until


@pytest.fixture
def impatient(marks: Database, database_url: str) -> Iterator[Database]:
    """Yield the database, opened once more with one writer and little patience."""
    opened = open_database(database_url, lock_timeout=0.3, writer_threads=1)
    yield opened
    opened.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as executor:
        yield executor


@contextlib.contextmanager
def _holding(database: Database, threads: ThreadPoolExecutor) -> Iterator[None]:
    """A write transaction of another thread, open for as long as the block runs."""
    inside, over = threading.Event(), threading.Event()

    def work(_: Connection) -> None:
        inside.set()
        assert over.wait(PATIENCE)

    future = threads.submit(database.write, work, is_committed=never)
    assert inside.wait(PATIENCE)
    try:
        yield
    finally:
        over.set()
        future.result(PATIENCE)


# Transactions


def test_what_a_write_returned_is_there_and_what_it_raised_is_not(marks: Database) -> None:
    def work(connection: Connection) -> str:
        connection.execute(text("INSERT INTO marks VALUES (1, 'a')"))
        return "written"

    def failing(connection: Connection) -> None:
        connection.execute(text("INSERT INTO marks VALUES (2, 'b')"))
        raise ZeroDivisionError

    assert marks.write(work, is_committed=never) == "written"
    with pytest.raises(ZeroDivisionError):
        marks.write(failing, is_committed=never)
    with marks.read() as connection:
        assert connection.execute(text("SELECT id, note FROM marks")).all() == [(1, "a")]


def test_what_was_committed_is_counted_and_nothing_else(marks: Database) -> None:
    def work(connection: Connection) -> None:
        count_metric(connection, "marks", "of a kind", 2)
        count_metric(connection, "marks", "of a kind")
        count_metric(connection, "others")

    def failing(connection: Connection) -> None:
        count_metric(connection, "marks", "of a kind", 100)
        raise ZeroDivisionError

    assert marks.counted() == {}
    marks.write(work, is_committed=never)
    with pytest.raises(ZeroDivisionError):
        marks.write(failing, is_committed=never)
    marks.write(work, is_committed=never)
    assert marks.counted() == {("marks", "of a kind"): 6, ("others", ""): 2}
    with marks.read() as connection:
        count_metric(connection, "others")  # which reads and commits nothing
    assert marks.counted()["others", ""] == 2


def test_the_connections_of_each_pool_are_told(marks: Database) -> None:
    with marks.read(), marks.read():
        assert marks.pools.connections()["readers"].in_use == 2
        assert marks.pools.connections()["writers"].in_use == 0
    assert marks.pools.connections()["readers"] == (0, 2)


def test_a_reader_sees_one_moment(marks: Database) -> None:
    with marks.read() as connection:
        before = connection.execute(text("SELECT count(*) FROM marks")).scalar_one()
        write(marks, "INSERT INTO marks VALUES (1, 'a')")
        assert connection.execute(text("SELECT count(*) FROM marks")).scalar_one() == before == 0
    assert count(marks) == 1


def test_a_reader_cannot_write(marks: Database) -> None:
    with pytest.raises((RuntimeError, Unavailable)), marks.read() as connection:
        connection.execute(text("INSERT INTO marks VALUES (1, 'a')"))
    assert count(marks) == 0


def test_readers_do_not_wait_for_a_writer(impatient: Database) -> None:
    def work(connection: Connection) -> int:
        connection.execute(text("INSERT INTO marks VALUES (1, 'a')"))
        return count(impatient)  # from the readers' own pool, while this transaction holds every lock it needs

    assert impatient.write(work, is_committed=never) == 0
    assert count(impatient) == 1


def test_writers_do_not_wait_for_readers(impatient: Database) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            connection = stack.enter_context(impatient.read())
            connection.execute(text("SELECT * FROM marks")).all()
        with pytest.raises(Unavailable), impatient.read():
            pass
        write(impatient, "INSERT INTO marks VALUES (1, 'a')")
    assert count(impatient) == 1


def test_a_transaction_that_is_gone_is_not_called_committed(marks: Database) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text("INSERT INTO marks VALUES (1, 'a')"))
        connection.exec_driver_sql("ROLLBACK")

    with pytest.raises(RuntimeError, match="nothing was committed"):
        marks.write(work, is_committed=never)
    assert count(marks) == 0


def test_a_commit_that_fails_leaves_no_transaction_behind(marks: Database) -> None:
    write(marks, "CREATE TABLE late (of INTEGER REFERENCES marks (id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(Conflict):  # after every attempt, each of which could begin
        write(marks, "INSERT INTO late VALUES (99)")
    write(marks, "INSERT INTO marks VALUES (1, 'a')")
    assert count(marks) == 1


def test_postgresql_does_not_commit_after_a_swallowed_error(postgresql_url: str) -> None:
    """The server answers the COMMIT of a failed transaction with a rollback and no error."""
    database = open_database(postgresql_url)

    def work(connection: Connection) -> None:
        with contextlib.suppress(DBAPIError):
            connection.execute(text("SELECT 1 / 0"))

    with contextlib.closing(database), pytest.raises(RuntimeError, match="nothing was committed"):
        database.write(work, is_committed=never)


def test_sqlite_is_durable_and_keeps_its_references(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")

    def settings(connection: Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names]

    with contextlib.closing(database):
        assert database.write(settings, is_committed=never) == ["wal", 2, 1]  # 2: FULL


def test_a_new_directory_of_the_ledger_is_its_owners_alone(tmp_path: Path) -> None:
    """Its mode does not depend on the umask: noisy counts are public only once they are published."""
    open_database(f"sqlite:///{tmp_path / 'service' / 'data' / 'ledger.db'}").close()
    assert (tmp_path / "service" / "data").stat().st_mode & 0o777 == 0o700


def test_postgresql_is_durable_and_isolated_whatever_the_databases_defaults(postgresql_url: str) -> None:
    with session(postgresql_url) as connection:
        name = make_url(postgresql_url).database
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    database = open_database(postgresql_url)

    def settings(connection: Connection) -> list[object]:
        names = ("synchronous_commit", "transaction_isolation", "idle_in_transaction_session_timeout")
        return [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]

    with contextlib.closing(database):
        assert database.write(settings, is_committed=never) == ["on", "read committed", "1min"]
        with database.read() as reader:
            assert settings(reader)[1] == "repeatable read"


# Waiting


def test_writers_are_served_in_the_order_in_which_they_came(
    marks: Database, database_url: str, threads: ThreadPoolExecutor
) -> None:
    served: list[int] = []
    with contextlib.closing(open_database(database_url, writer_threads=1)) as database:
        with _holding(database, threads):
            futures: list[Future[None]] = []
            for number in range(20):
                futures.append(
                    threads.submit(database.write, lambda _, number=number: served.append(number), is_committed=never)
                )
                until(lambda expected=number + 1: database.writers.waiting == expected)  # type: ignore[misc]
        for future in futures:
            future.result(PATIENCE)
    assert served == list(range(20))


def test_whoever_waits_too_long_is_told_to_come_again(impatient: Database, threads: ThreadPoolExecutor) -> None:
    with _holding(impatient, threads):
        with pytest.raises(Unavailable) as refused:
            write(impatient, "INSERT INTO marks VALUES (1, 'a')")
        assert refused.value.retry_after > 0
        assert impatient.writers.waiting == 0
    write(impatient, "INSERT INTO marks VALUES (2, 'b')")  # the place was not lost
    assert count(impatient) == 1


def test_whoever_gives_up_does_not_hold_up_those_behind(threads: ThreadPoolExecutor) -> None:
    queue = WaitingLine(1)
    soon, late = time.monotonic() + 0.2, time.monotonic() + PATIENCE

    def pass_through(deadline: float) -> str:
        with queue.place(deadline):
            return "served"

    with queue.place(late):
        first = threads.submit(pass_through, soon)
        until(lambda: queue.waiting == 1)
        second = threads.submit(pass_through, late)
        with pytest.raises(Unavailable):
            first.result(PATIENCE)
    assert second.result(PATIENCE) == "served"


def test_a_lock_of_another_process_is_waited_for_and_then_refused(impatient: Database, database_url: str) -> None:
    def update(connection: Connection) -> None:
        connection.execute(text("UPDATE marks SET note = 'b' WHERE id = 1"))

    write(impatient, "INSERT INTO marks VALUES (1, 'a')")
    with _other_process_locks(database_url, "UPDATE marks SET note = 'c' WHERE id = 1"):
        with pytest.raises(Unavailable, match="held a lock that this one needs"):
            impatient.write(update, is_committed=never)
        assert count(impatient) == 1
    impatient.write(update, is_committed=never)


@contextlib.contextmanager
def _other_process_locks(url: str, statement: str) -> Iterator[None]:
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(str(make_url(url).database), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(statement)
            yield
            connection.execute("ROLLBACK")
    else:
        with psycopg.connect(libpq_url(url)) as other:
            other.execute(statement)
            yield
            other.rollback()


def test_waiting_is_not_an_error(marks: Database, threads: ThreadPoolExecutor) -> None:
    write(marks, "INSERT INTO marks VALUES (1, '0')")

    def increment(connection: Connection) -> int:
        locked = text("SELECT note FROM marks WHERE id = 1" + (" FOR UPDATE" if marks.kind == "postgresql" else ""))
        value = int(connection.execute(locked).scalar_one()) + 1
        connection.execute(text("UPDATE marks SET note = :note WHERE id = 1"), {"note": str(value)})
        return value

    futures = [threads.submit(marks.write, increment, is_committed=never) for _ in range(160)]
    assert sorted(future.result(PATIENCE) for future in futures) == list(range(1, 161))


# Opening


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with contextlib.closing(open_database(f"postgresql+psycopg://nobody@/nothing?host={tmp_path}")) as database:
        with pytest.raises(Unavailable), database.read():
            pass
        with pytest.raises(Unavailable):
            database.write(lambda _: None, is_committed=never)


def test_a_file_that_is_not_a_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(Unavailable):
        open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    with pytest.raises(Unavailable):
        open_database(f"sqlite:///{tmp_path / 'ledger.db' / 'below a file.db'}")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:ledger.db?mode=memory&uri=true",
        "oracle://scott:tiger@host/database",
        "tiger",
        "postgresql://scott:tiger@host:port/database",
    ],
)
def test_a_url_that_cannot_hold_the_ledger_is_refused(url: str) -> None:
    with pytest.raises(StartupRefused) as refused:
        open_database(url)
    assert "tiger" not in "".join(traceback.format_exception(refused.value)).replace(url, "")


def test_a_new_sqlite_file_is_its_owners_alone_in_any_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    open_database(f"sqlite:///{tmp_path / 'ledger.db'}").close()
    assert (tmp_path / "ledger.db").stat().st_mode & 0o777 == 0o600
