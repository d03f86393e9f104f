"""Writers on SQLite who share a commit: to each it is as if he had had a transaction of his own, in their order."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from service.errors import Altered, Conflict, NotFound, Unavailable
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.transaction import count_metric
from tests.ledger.writing import never

_PATIENCE = 30.0  # seconds after which a test that hangs fails
_IMPATIENCE = 0.3

Work = Callable[[Connection], Any]


@pytest.fixture
def marks(tmp_path: Path) -> Iterator[Database]:
    """A database with a table of the test's own, whose writers wait 0.3 s."""
    database = open_database(f"sqlite:///{tmp_path}/ledger.db", lock_timeout=_IMPATIENCE)
    database.write(_tables, is_committed=never)
    with contextlib.closing(database):
        yield database


def _tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE marks (id INTEGER PRIMARY KEY, note TEXT CHECK (note <> 'forbidden'))"))
    late = "CREATE TABLE late (of INTEGER REFERENCES marks (id) DEFERRABLE INITIALLY DEFERRED)"
    connection.execute(text(late))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as executor:
        yield executor


def _mark(number: int, note: str = "a") -> Work:
    def work(connection: Connection) -> int:
        connection.execute(text("INSERT INTO marks VALUES (:id, :note)"), {"id": number, "note": note})
        count_metric(connection, "marks")
        return number

    return work


def _ids(database: Database) -> list[int]:
    with database.read() as connection:
        return list(connection.execute(text("SELECT id FROM marks ORDER BY rowid")).scalars())


def _together(
    database: Database, threads: ThreadPoolExecutor, first: Work, others: list[Work]
) -> tuple[Future[Any], list[Future[Any]]]:
    """Write ``first``, and meanwhile have all others wait behind it; returns at the end of all."""
    inside, over = threading.Event(), threading.Event()

    def held(connection: Connection) -> Any:
        inside.set()
        assert over.wait(_PATIENCE)
        return first(connection)

    leading = threads.submit(database.write, held, is_committed=never)
    assert inside.wait(_PATIENCE)
    joining = []
    for number, work in enumerate(others, start=1):
        joining.append(threads.submit(database.write, work, is_committed=never))
        while database.writers.waiting < number:
            time.sleep(0.001)
    over.set()
    for future in (leading, *joining):
        future.exception(_PATIENCE)
    return leading, joining


def test_they_have_one_commit_and_are_told_nothing_before_it(marks: Database, threads: ThreadPoolExecutor) -> None:
    told: list[bool] = []
    futures: list[Future[Any]] = []
    submit = threads.submit

    def noted(*given: Any, **named: Any) -> Future[Any]:
        futures.append(submit(*given, **named))
        return futures[-1]

    threads.submit = noted  # type: ignore[method-assign]
    event.listen(marks.pools.writer, "commit", lambda _: told.append(any(future.done() for future in futures)))
    leading, joining = _together(marks, threads, _mark(1), [_mark(number) for number in range(2, 8)])
    assert told == [False]
    assert [future.result() for future in (leading, *joining)] == list(range(1, 8))
    assert _ids(marks) == list(range(1, 8))
    assert marks.counted() == {("marks", ""): 7}


def test_each_sees_what_those_before_him_did(marks: Database, threads: ThreadPoolExecutor) -> None:
    def count(connection: Connection) -> int:
        number = int(connection.execute(text("SELECT count(*) FROM marks")).scalar_one())
        _mark(number)(connection)
        return number

    leading, joining = _together(marks, threads, count, [count] * 9)
    assert [future.result() for future in (leading, *joining)] == list(range(10))


def test_one_who_is_refused_leaves_nothing_and_the_others_stand(marks: Database, threads: ThreadPoolExecutor) -> None:
    def refused(connection: Connection) -> None:
        _mark(3)(connection)
        raise NotFound("account", "nobody")

    _, (second, third, fourth) = _together(marks, threads, _mark(1), [_mark(2), refused, _mark(4)])
    with pytest.raises(NotFound):
        third.result()
    assert (second.result(), fourth.result()) == (2, 4)
    assert _ids(marks) == [1, 2, 4]
    assert marks.counted() == {("marks", ""): 3}


def test_where_the_first_is_refused_the_next_one_leads(marks: Database, threads: ThreadPoolExecutor) -> None:
    def refused(connection: Connection) -> None:
        _mark(1)(connection)
        raise NotFound("account", "nobody")

    leading, joining = _together(marks, threads, refused, [_mark(2), _mark(3)])
    with pytest.raises(NotFound):
        leading.result()
    assert [future.result() for future in joining] == [2, 3]
    assert _ids(marks) == [2, 3]


def _swallows(connection: Connection) -> None:
    connection.exec_driver_sql("ROLLBACK")  # as SQLite does by itself where its disk is full


@pytest.mark.parametrize("failing", [_mark(3, "forbidden"), _swallows])
def test_a_statement_that_fails_is_its_owners_alone(
    marks: Database, threads: ThreadPoolExecutor, failing: Work
) -> None:
    leading, (second, third, fourth) = _together(marks, threads, _mark(1), [_mark(2), failing, _mark(4)])
    with pytest.raises((Altered, RuntimeError)):
        third.result()
    assert [future.result() for future in (leading, second, fourth)] == [1, 2, 4]
    assert sorted(_ids(marks)) == [1, 2, 4]
    assert marks.counted() == {("marks", ""): 3}


def test_a_commit_that_fails_is_nobodys_success(marks: Database, threads: ThreadPoolExecutor) -> None:
    def breaking(connection: Connection) -> None:
        connection.execute(text("INSERT INTO late VALUES (99)"))  # which only the commit looks at

    leading, joining = _together(marks, threads, breaking, [_mark(2), _mark(3)])
    with pytest.raises(Conflict):
        leading.result()
    for future in joining:
        with pytest.raises(Unavailable):
            future.result()
    assert _ids(marks) == []
    assert marks.counted() == {}
    marks.write(_mark(4), is_committed=never)  # the place was not lost
    assert _ids(marks) == [4]


def test_whoever_waited_too_long_is_not_joined_but_whose_work_is_under_way_is_told(
    marks: Database, threads: ThreadPoolExecutor
) -> None:
    def slow(connection: Connection) -> int:
        time.sleep(2 * _IMPATIENCE)  # beyond the patience of all who wait
        return int(_mark(2)(connection))

    started = threading.Event()

    def late(connection: Connection) -> int:
        started.set()
        return int(_mark(3)(connection))

    leading, (second, third) = _together(marks, threads, _mark(1), [slow, late])
    assert (leading.result(), second.result()) == (1, 2)
    with pytest.raises(Unavailable):
        third.result()
    assert not started.is_set()
    assert _ids(marks) == [1, 2]
