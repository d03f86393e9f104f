"""Writes that the database drops without an error: nothing is answered that the journal does not hold."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event

from service.errors import Altered
from service.ledger import jobs
from service.ledger.draws.retention import remove_noisy
from service.ledger.idempotent_write import idempotent_write
from service.ledger.installation import installation_journal
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer
from service.ledger.storage.secret import Secret
from tests.ledger.charging import SECRET, account_of, asking, charge, draw, entries_of, open_account
from tests.ledger.writing import run

_LATER = "2040-01-01T00:00:00.000000Z"
_PLAN = {"type": "gaussian", "rho": "1/8"}
_FUNCTION = "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"


def _silence(database: Database, event: str, table: str) -> Callable[[], None]:
    """Add a trigger; the way to take it away again."""
    on = ""
    if database.kind == "sqlite":
        run(database, f"CREATE TRIGGER aaa BEFORE {event} ON {table} BEGIN SELECT RAISE(IGNORE); END")
    else:
        run(database, _FUNCTION)
        run(database, f"CREATE TRIGGER aaa BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION nothing()")
        on = f" ON {table}"
    return lambda: run(database, f"DROP TRIGGER aaa{on}", *(["DROP FUNCTION nothing"] if on else []))


@pytest.mark.parametrize(("event", "table"), [("INSERT", "journal"), ("UPDATE", "accounts")])
@pytest.mark.parametrize("plans", [1, 2])
def test_a_charge_that_the_database_drops_is_not_answered(
    database: Database, event: str, table: str, plans: int
) -> None:
    open_account(database, "agency")
    open_account(database, parent="agency")
    before = account_of(database)
    speak = _silence(database, event, table)
    for _ in range(2):
        with pytest.raises(Altered) as refused:
            charge(database, *[_PLAN] * plans)
        assert "nothing was committed" in str(refused.value.for_operator)
    speak()
    assert account_of(database) == before
    charge(database, *[_PLAN] * plans)
    assert len(entries_of(database)) == 1 + plans


def test_an_entry_of_the_installation_that_the_database_drops_is_an_error(database: Database, secret: Secret) -> None:
    def append(connection: Connection) -> None:
        installation_journal.append(connection, secret, "key_made", {}, actor=None, at=clock.now())

    speak = _silence(database, "INSERT", "installation_journal")
    with pytest.raises(Altered):
        database.write(append, is_committed=lambda *_: False)
    speak()
    database.write(append, is_committed=lambda *_: False)
    with database.read() as connection:
        assert installation_journal.head(connection).seq == 1


@pytest.mark.parametrize("ended", ["parameters = 'x'", "attempts = 3"])
def test_a_job_that_the_database_does_not_end_is_not_met_for_ever(database: Database, ended: str) -> None:
    request = asking("ann", None, "digest")
    idempotent_write(database, request, jobs.submit(request, {}), lambda job: Answer(202, job.id))
    run(database, f"UPDATE jobs SET {ended}")
    speak = _silence(database, "UPDATE", "jobs")
    with _bounded(database), pytest.raises(Altered):
        jobs.take(database, "w")
    speak()
    assert jobs.take(database, "w") is None
    assert jobs.unfinished(database)["queued"] == 0


def test_a_job_whose_id_no_text_equals_is_refused_and_found(database: Database) -> None:
    if database.kind == "postgresql":
        return  # where each text has the database's encoding
    run(
        database,
        "INSERT INTO jobs (id, principal, parameters, state, permille, attempts, created_at)"
        " VALUES (CAST(X'ff41' AS TEXT), 'ann', 'x', 'queued', 0, 0, '')",
    )
    with _bounded(database), pytest.raises(Altered):
        jobs.take(database, "w")
    with database.read() as connection:
        assert [str(job) for job in jobs.altered(connection, SECRET)] == [str(b"\xffA")]


def test_only_counts_and_jobs_that_are_gone_are_called_removed(database: Database) -> None:
    """Otherwise the removal goes on for as long as there are some."""
    open_account(database)
    (registered,) = charge(database, _PLAN | {"name": "a"})
    draw(database, registered.id, _PLAN | {"name": "a"})
    request = asking("ann", None, "digest")
    job = idempotent_write(database, request, jobs.submit(request, {}), lambda job: Answer(202, job.id)).answer.body
    jobs.end(database, str(job))
    speak = _silence(database, "UPDATE", "draws")
    assert remove_noisy(database, _LATER, _LATER) == 0
    speak()
    assert remove_noisy(database, _LATER, _LATER) == 1
    speak = _silence(database, "DELETE", "jobs")
    assert jobs.forget(database, _LATER) == 0
    speak()
    assert jobs.forget(database, _LATER) == 1


@contextlib.contextmanager
def _bounded(database: Database) -> Iterator[None]:
    """Refuse a transaction of more than some statements, which an endless one has."""
    statements: list[str] = []

    def count(*given: Any) -> None:
        statements.append(given[2])
        assert len(statements) < 50

    event.listen(database.pools.writer, "before_cursor_execute", count)
    yield
    event.remove(database.pools.writer, "before_cursor_execute", count)
