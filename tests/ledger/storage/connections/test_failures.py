"""Failures of the database: another attempt, or a refusal that says nothing of the statement."""

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from service.errors import Altered, Conflict, Unavailable
from service.ledger.storage.database import Database, open_database
from tests.ledger.marks import PATIENCE, count, never, write

SECRET = 7331


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


# Trying again


def test_of_two_writers_that_want_one_key_the_second_finds_it(postgresql_url: str, threads: ThreadPoolExecutor) -> None:
    both_looked = threading.Barrier(2)
    runs: list[str] = []

    with contextlib.closing(open_database(postgresql_url)) as database:
        write(database, "CREATE TABLE marks (id INTEGER PRIMARY KEY)")

        def work(connection: Connection) -> str:
            if connection.execute(text("SELECT id FROM marks")).first() is not None:
                runs.append("found")
                return "found"
            runs.append("looked")
            both_looked.wait(PATIENCE)
            connection.execute(text("INSERT INTO marks VALUES (1)"))
            return "inserted"

        futures = [threads.submit(database.write, work, is_committed=never) for _ in range(2)]
        assert sorted(future.result(PATIENCE) for future in futures) == ["found", "inserted"]
    assert runs == ["looked", "looked", "found"]


def test_a_key_that_stays_taken_is_a_conflict(marks: Database) -> None:
    runs = []

    def work(connection: Connection) -> None:
        runs.append(1)
        connection.execute(text("INSERT INTO marks VALUES (1, 'a')"))

    marks.write(work, is_committed=never)
    with pytest.raises(Conflict):
        marks.write(work, is_committed=never)
    assert len(runs) == 1 + 5
    assert count(marks) == 1


def test_a_deadlock_is_tried_again(postgresql_url: str, threads: ThreadPoolExecutor) -> None:
    both_locked_one = threading.Barrier(2)
    runs: list[int] = []

    with contextlib.closing(open_database(postgresql_url)) as database:
        write(database, "CREATE TABLE marks AS SELECT 1 AS id, 0 AS count UNION SELECT 2, 0")

        def work(first: int, second: int) -> Callable[[Connection], None]:
            def increment_both(connection: Connection) -> None:
                runs.append(first)
                connection.execute(text("UPDATE marks SET count = count + 1 WHERE id = :id"), {"id": first})
                if len(runs) <= 2:
                    both_locked_one.wait(PATIENCE)
                connection.execute(text("UPDATE marks SET count = count + 1 WHERE id = :id"), {"id": second})

            return increment_both

        futures = [threads.submit(database.write, work(*order), is_committed=never) for order in ((1, 2), (2, 1))]
        for future in futures:
            future.result(PATIENCE)
        with database.read() as connection:
            assert connection.execute(text("SELECT count FROM marks")).scalars().all() == [2, 2]
    assert len(runs) >= 3  # more where one asks again before the other has got what it waits for


@pytest.mark.parametrize(("failures", "succeeds"), [(1, True), (4, True), (5, False)])
def test_a_serialization_failure_is_tried_again_a_few_times(postgresql_url: str, failures: int, succeeds: bool) -> None:
    runs = []

    def work(connection: Connection) -> int:
        runs.append(1)
        connection.execute(text("INSERT INTO marks VALUES (1)"))
        if len(runs) <= failures:
            connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
        return len(runs)

    with contextlib.closing(open_database(postgresql_url)) as database:
        write(database, "CREATE TABLE marks (id INTEGER)")
        if succeeds:
            assert database.write(work, is_committed=never) == failures + 1
        else:
            with pytest.raises(Unavailable):
                database.write(work, is_committed=never)
        assert count(database) == int(succeeds)


# What a caller is told


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO marks VALUES (:value, 'forbidden')",  # PostgreSQL: "Failing row contains (7331, ...)"
        "INSERT INTO marks VALUES (1, 'a'), (:value, 'b'), (:value, 'c')",  # "Key (id)=(7331) already exists"
        "INSERT INTO nowhere VALUES (:value)",
    ],
)
def test_no_message_contains_a_statements_values(marks: Database, statement: str) -> None:
    with pytest.raises((Altered, RuntimeError, Conflict)) as refused:
        marks.write(lambda connection: connection.execute(text(statement), {"value": SECRET}), is_committed=never)
    told = "".join(traceback.format_exception(refused.value)) + repr(refused.value)
    assert str(SECRET) not in told
    assert "sqlalchemy.exc" not in told


def test_sqlalchemys_own_message_contains_no_values(marks: Database) -> None:
    """Should one ever be logged inside a transaction."""

    def work(connection: Connection) -> str:
        with pytest.raises(DBAPIError) as refused:
            connection.execute(text("INSERT INTO nowhere VALUES (:value)"), {"value": SECRET})
        raise ZeroDivisionError(str(refused.value))

    with pytest.raises(ZeroDivisionError) as told:
        marks.write(work, is_committed=never)
    assert "INSERT INTO nowhere" in str(told.value)
    assert str(SECRET) not in str(told.value)


def test_a_readers_message_contains_no_values_either(marks: Database) -> None:
    with pytest.raises(RuntimeError) as refused, marks.read() as connection:
        connection.execute(text("SELECT nothing FROM marks WHERE id = :value"), {"value": SECRET})
    told = "".join(traceback.format_exception(refused.value)) + repr(refused.value)
    assert str(SECRET) not in told
    assert "sqlalchemy.exc" not in told


def test_a_full_disk_is_unavailable(marks: Database) -> None:
    def work(connection: Connection) -> None:
        if marks.kind == "sqlite":
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            connection.execute(text("INSERT INTO marks VALUES (1, hex(randomblob(100000)))"))
        else:
            connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full'; END $$")

    with pytest.raises(Unavailable, match="no space left"):
        marks.write(work, is_committed=never)
    assert count(marks) == 0
