"""Connections that break, at every moment of a write: it happens once, or the caller is told that it is unknown.

A relay between the service and a real PostgreSQL breaks the line around the COMMIT, which is the
only moment at which a client cannot know what happened.
"""

import contextlib
import itertools
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import Connection, text

from service.errors import NotFound, Unavailable
from service.ledger import jobs
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.group_commit import NewEntry
from service.ledger.storage.transaction import count_metric, note_entries
from tests.ledger.charging import asking, carry_out
from tests.postgres_server import libpq_url, session
from tests.relay import Break, Relay, before_postgresql
from tests.waiting import until

PATIENCE = 30.0  # seconds after which a test that hangs fails


@pytest.fixture
def server(postgresql_url: str) -> Iterator[psycopg.Connection]:
    """A way to the server beside the relay, with a table of the tests' own."""
    with session(postgresql_url) as connection:
        connection.execute("CREATE TABLE marks (note TEXT)")
        yield connection


@pytest.fixture
def line(postgresql_url: str) -> Iterator[tuple[Relay, str]]:
    with before_postgresql(postgresql_url) as opened:
        yield opened


@pytest.fixture
def relay(line: tuple[Relay, str]) -> Relay:
    return line[0]


@pytest.fixture
def relayed(line: tuple[Relay, str], server: psycopg.Connection) -> Iterator[Database]:
    database = open_database(line[1], lock_timeout=PATIENCE)
    yield database
    database.close()


_numbers = itertools.count(1)


class Work:
    """Writes a mark of its own each time that it runs."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.asked: list[str] = []

    def __call__(self, connection: Connection) -> str:
        note = uuid.uuid4().hex
        self.notes.append(note)
        connection.execute(text("INSERT INTO marks VALUES (:note)"), {"note": note})
        count_metric(connection, "marks")
        note_entries(connection, [NewEntry(1, next(_numbers), note)])
        return note

    def is_committed(self, connection: Connection, note: str) -> bool:
        self.asked.append(note)
        found = connection.execute(text("SELECT note FROM marks WHERE note = :note"), {"note": note})
        return found.first() is not None


def _marks(server: psycopg.Connection) -> list[str]:
    return [note for (note,) in server.execute("SELECT note FROM marks").fetchall()]


def test_nothing_is_asked_where_nothing_breaks(relayed: Database, server: psycopg.Connection) -> None:
    work = Work()
    assert [relayed.write(work, is_committed=work.is_committed)] == _marks(server)
    assert relayed.counted() == {("marks", ""): 1}  # however often it was tried
    assert work.asked == []


def test_a_commit_that_never_arrived_is_made_again(relayed: Database, relay: Relay, server: psycopg.Connection) -> None:
    work = Work()
    relay.breaks = [Break.BEFORE]
    assert [relayed.write(work, is_committed=work.is_committed)] == _marks(server)
    assert relayed.counted() == {("marks", ""): 1}  # however often it was tried
    assert len(work.notes) == 2
    assert work.asked == work.notes[:1]


def test_a_commit_whose_confirmation_was_lost_is_not_made_again(
    relayed: Database, relay: Relay, server: psycopg.Connection
) -> None:
    work = Work()
    relay.breaks = [Break.AFTER]
    assert [relayed.write(work, is_committed=work.is_committed)] == _marks(server)
    assert relayed.counted() == {("marks", ""): 1}  # however often it was tried
    assert len(work.notes) == 1


@pytest.mark.parametrize("moment", list(Break))
def test_a_job_is_cancelled_or_deleted_once_whatever_was_heard_of_it(
    relayed: Database, relay: Relay, moment: Break
) -> None:
    job_id = carry_out(relayed, jobs.submit(asking("ann"), {})).id
    for state in ("queued", "cancelled"):
        with relayed.read() as connection:
            assert jobs.read_job(connection, job_id).state == state
        relay.breaks = [moment]
        jobs.end(relayed, job_id)
    with relayed.read() as connection, pytest.raises(NotFound):
        jobs.read_job(connection, job_id)


def test_every_broken_commit_is_remembered(relayed: Database, relay: Relay, server: psycopg.Connection) -> None:
    work = Work()
    relayed.remembers = True
    relay.breaks = [Break.BEFORE, Break.AFTER]
    assert [relayed.write(work, is_committed=work.is_committed)] == _marks(server) == work.notes[1:]
    assert relayed.counted() == {("marks", ""): 1}
    assert work.asked == [work.notes[0], *work.notes]
    assert [entry.hash for entry in relayed.take_committed()] == work.notes[1:], "only what is_committed"


def test_a_commit_that_is_still_going_on_is_waited_for(
    relayed: Database, relay: Relay, server: psycopg.Connection
) -> None:
    """The hardest case: the line is lost, and the next attempt is there before the server has committed the first."""
    server.execute("""\
CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$""")
    server.execute("""\
CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON marks
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_for_test()""")
    server.execute("SELECT pg_advisory_lock(42)")
    work = Work()
    relay.breaks = [Break.DURING]

    def waiting() -> int:
        row = server.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone()
        assert row is not None
        return int(row[0])

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(relayed.write, work, is_committed=work.is_committed)
        # The first attempt inside its commit, and the second before its first look.
        until(lambda: waiting() == 2)
        assert len(work.notes) == 1
        assert work.asked == []
        server.execute("SELECT pg_advisory_unlock(42)")
        assert [future.result(PATIENCE)] == _marks(server)
    assert len(work.notes) == 1


def test_a_caller_is_told_when_the_outcome_stays_unknown(
    relayed: Database, relay: Relay, server: psycopg.Connection
) -> None:
    work = Work()
    relay.breaks = [Break.BEFORE] * 5
    with pytest.raises(Unavailable, match="may or may not have happened"):
        relayed.write(work, is_committed=work.is_committed)
    assert len(work.notes) == 5
    assert _marks(server) == []


def test_a_connection_that_breaks_before_the_commit_is_replaced(relayed: Database, server: psycopg.Connection) -> None:
    work = Work()

    def killed_once(connection: Connection) -> str:
        note = work(connection)
        if len(work.notes) == 1:
            server.execute(
                "SELECT pg_terminate_backend(%s, 10000)",
                [connection.execute(text("SELECT pg_backend_pid()")).scalar_one()],
            )
            connection.execute(text("SELECT 1"))
        return note

    assert [relayed.write(killed_once, is_committed=work.is_committed)] == _marks(server)
    assert len(work.notes) == 2
    assert work.asked == []  # it cannot have been committed


def test_a_connection_killed_at_the_commit_is_asked_about(relayed: Database, server: psycopg.Connection) -> None:
    work = Work()

    def killed_once(connection: Connection) -> str:
        note = work(connection)
        if len(work.notes) == 1:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            server.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        return note

    assert [relayed.write(killed_once, is_committed=work.is_committed)] == _marks(server)
    assert work.asked == work.notes[:1]


def test_a_server_that_restarted_is_found_again(relayed: Database, server: psycopg.Connection) -> None:
    """Every idle connection of both pools is dead, and neither a writer nor a reader notices."""
    work = Work()
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(relayed.read())
        relayed.write(work, is_committed=work.is_committed)
    killed = server.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchall()
    assert killed == [(True,)] * 5
    with relayed.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM marks")).scalar_one() == 1
    assert relayed.write(work, is_committed=work.is_committed) in _marks(server)
    assert len(_marks(server)) == 2


def test_a_server_that_comes_back_in_time_is_waited_for(
    relayed: Database, relay: Relay, server: psycopg.Connection, postgresql_server: str
) -> None:
    """After a lost connection a server that refuses new ones for a moment, as while it starts, is asked again."""
    work = Work()
    name = server.info.dbname
    elsewhere = libpq_url(postgresql_server)

    def killed_and_shut_out_once(connection: Connection) -> str:
        note = work(connection)
        if len(work.notes) == 1:
            administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            administrator.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            before.append(relay.connections)
            reopening.start()
        return note

    def reopen() -> None:
        until(lambda: relay.connections > before[0] + 1)  # the one before was refused
        administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    before: list[int] = []
    reopening = threading.Thread(target=reopen)
    with psycopg.connect(elsewhere, autocommit=True) as administrator:
        assert [relayed.write(killed_and_shut_out_once, is_committed=work.is_committed)] == _marks(server)
        reopening.join(PATIENCE)
    assert relay.connections >= before[0] + 2
    assert len(work.notes) == 2


def test_a_connection_that_breaks_after_the_last_question_has_answered(
    relayed: Database, server: psycopg.Connection
) -> None:
    for _ in range(20):  # more than there are connections, so that each is given back
        with relayed.read() as connection:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            server.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


def test_a_reader_whose_connection_breaks_is_told(relayed: Database, server: psycopg.Connection) -> None:
    for _ in range(20):
        with pytest.raises(Unavailable, match="cannot be reached"):
            _read_while_broken(relayed, server)


def _read_while_broken(database: Database, server: psycopg.Connection) -> None:
    with database.read() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        server.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        connection.execute(text("SELECT 1"))


def test_a_server_that_became_a_standby_is_left(relayed: Database, server: psycopg.Connection) -> None:
    """Its connections answer, read-only; the next attempt makes a new one, which may lead to the new primary."""
    work = Work()
    pids: list[int] = []

    def demoted_once(connection: Connection) -> str:
        pids.append(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
        if len(pids) == 1:
            connection.execute(text("SET TRANSACTION READ ONLY"))
        return work(connection)

    assert [relayed.write(demoted_once, is_committed=work.is_committed)] == _marks(server)
    assert len(set(pids)) == 2
