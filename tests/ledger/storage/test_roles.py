"""The application's role at PostgreSQL: all that the service does works, and what is there for ever is out of reach."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, make_url, text

from service.errors import Unavailable
from service.ledger import jobs, scenarios
from service.ledger.access import keys
from service.ledger.access.key_usage import KeyUsage
from service.ledger.draws.retention import remove_noisy
from service.ledger.installation import installation_journal
from service.ledger.installation.binding import check_secret
from service.ledger.installation.ledger_versions import begin_version, prepare_version
from service.ledger.installation.signing import Signer
from service.ledger.journal.journal import Actor
from service.ledger.notifications import deliveries
from service.ledger.notifications.deliveries import Message, Try
from service.ledger.scenarios import StatedScenario
from service.ledger.spending import kept_figures
from service.ledger.storage import clock
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.migrate import migrate, prepare
from service.ledger.storage.schema import require_schema
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Base
from service.ledger.verification.adoption import adopt
from service.ledger.verification.imports import rebuild
from service.ledger.verification.recompute import recompute
from service.ledger.verification.verify import verify
from service.notifications.follower import Follower
from tests.ledger.charging import SECRET, asking, carry_out, charge, open_account
from tests.ledger.keys import make_key
from tests.ledger.ledgers import NAMES, A, Clock, everything, exported
from tests.ledger.notifications.hooks import change_webhook, erase, make_webhook, remove_webhook
from tests.ledger.roles import APPLICATION, application_url, run_script
from tests.ledger.storage.test_append_only import FIXED, MONTHS
from tests.ledger.verification.test_recompute import older
from tests.ledger.writing import never
from tests.postgres_server import libpq_url

__all__ = ["older"]  # a fixture

_FOREVER = ("journal", "installation_journal", "draws", "releases", "release_tags", "tabulations", "branches_taken")
_LATER = "2040-01-01T00:00:00.000000Z"


@contextmanager
def _connected(url: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@contextmanager
def _opened(url: str) -> Iterator[Database]:
    database = open_database(url)
    try:
        yield database
    finally:
        database.close()


@pytest.fixture
def url(postgresql_url: str) -> str:
    """Of a migrated database, as the application's role."""
    return application_url(postgresql_url)


@pytest.fixture
def served(url: str) -> Iterator[Database]:
    """Yield the database as the service uses it: bound to a secret, with a first key."""
    with _opened(url) as database:
        prepare(database, embedded=False)
        require_schema(database)
        check_secret(database, SECRET)
        adopt(database, SECRET, None)
        assert keys.ensure_first_key(database, SECRET, None, None) is not None
        yield database


def _use_keys(database: Database) -> None:
    now = clock.now()
    ann = Actor("ann", None)

    def make(connection: Connection) -> str:
        made, _ = keys.create_key(
            connection, SECRET, name="ann", role="pipeline", accounts=None, expires_at=None, at=now, by=ann
        )
        new, _ = keys.rotate_key(connection, SECRET, made.id, overlap=timedelta(1), at=now, by=ann)
        keys.revoke_key(connection, SECRET, made.id, at=now, by=None)
        return new.id

    uses = KeyUsage(database)
    uses.note(database.write(make, is_committed=lambda *_: False), now)
    assert uses.write() == 1


def _use_jobs(database: Database) -> None:
    for number, end in enumerate(("finish", "fail", "give back")):
        request = asking("ann", f"key {number}", "digest")
        carry_out(database, jobs.submit(request, {"number": number}), request)
        job = jobs.take(database, "w")
        assert job is not None
        assert jobs.renew(database, job.id, "w", 0.5)
        if end == "finish":
            assert jobs.finish(database, SECRET, job, "w", {"found": 1})
        elif end == "fail":
            assert jobs.fail(database, job.id, "w", "internal", "it broke")
        else:
            assert jobs.give_back(database, job.id, "w")
            assert jobs.end(database, job.id).state == "cancelled"
            assert jobs.end(database, job.id).state == "cancelled"  # and is forgotten
    assert jobs.forget(database, _LATER) == 2


def _use_scenarios(database: Database) -> None:
    request = asking("ann", "a scenario", "digest")
    stated = StatedScenario("a", None, "margins", "geometric", {})
    carry_out(database, scenarios.save(request, stated), request)
    with database.read() as connection:
        (saved,) = connection.scalars(text("SELECT id FROM scenarios")).all()
    scenarios.exchange(database, saved, replace(stated, name="b"), lambda _: None)
    scenarios.remove(database, saved, lambda _: None)


def _use_webhooks(database: Database) -> None:
    """Make, change and delete webhooks, and try their messages to their end."""
    made = make_webhook(database, events=("release.proposed", "budget.below"), below="0.999999")
    changed = change_webhook(database, made.id, generation=2, rotated_at=clock.now())
    for webhook in (changed, make_webhook(database)):
        at = clock.now()
        new = [Message(webhook.id, "test", None, at, {})]
        database.write(partial(deliveries.queue, rows=deliveries.sealed(SECRET, new, at)), is_committed=never)
        with database.read() as connection:
            (found,) = deliveries.due(connection, SECRET, at, webhook, 1)
        assert deliveries.claim(database, webhook, found)
        deliveries.record(database, found, Try(at, 1, 500, "the answer has status 500", None))
    change_webhook(database, webhook.id, accounts=("people",))
    remove_webhook(database, webhook.id)
    erase(database)


def test_all_that_the_service_writes_is_allowed(
    served: Database, monkeypatch: pytest.MonkeyPatch, secret: Secret
) -> None:
    _use_keys(served)
    _use_jobs(served)
    _use_scenarios(served)
    for cost in ("1", "2"):
        kept_figures.keep(served, secret, [kept_figures.KeptFigures("subject", "state", cost)])
    _use_webhooks(served)
    everything(served, Clock(monkeypatch))
    Follower(served, SECRET, None).follow()
    open_account(served, "by-month", periods=MONTHS)
    for _ in range(2):
        charge(served, A, name="by-month", periods={"list": ["2026-01"]})
    assert remove_noisy(served, _LATER, _LATER) > 0
    with served.read() as connection:
        assert all(verify(connection, name).valid for name in NAMES)
        empty = [
            table for table in Base.metadata.tables if not connection.scalar(text(f"SELECT count(*) FROM {table}"))
        ]
    assert set(empty) <= {"jobs", "older_rows", "scenarios"}
    with served.read() as connection:
        version = prepare_version(connection, SECRET, verified=True)
    served.write(lambda connection: begin_version(connection, SECRET, version), is_committed=lambda *_: False)
    assert (version.faults, version.rows.number > 50) == ({}, True)


@pytest.mark.parametrize("new_database", ["postgresql"], indirect=True)
def test_a_ledger_is_imported_and_priced_again(
    served: Database, new_database: Callable[[], Database], signer: Signer, older: pytest.MonkeyPatch
) -> None:
    original = new_database()
    open_account(original, definition="pure", epsilon="2")
    charge(original, A)
    older.undo()
    everything(original, Clock(older))
    file = exported(original, signer)
    rebuild(served, lambda: io.BytesIO(file), signer.public_key)
    assert len(recompute(served, "people", apply=True).prices) == 1
    with served.read() as connection:
        assert all(verify(connection, name).valid for name in (*NAMES, "people"))


def _statements() -> Iterator[str]:
    for table in _FOREVER:
        yield f"DELETE FROM {table}"
        yield f"TRUNCATE {table}"
        yield f"ALTER TABLE {table} DISABLE TRIGGER ALL"
        yield f"DROP TABLE {table} CASCADE"
        yield f"CREATE TRIGGER mine BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        yield f"CREATE RULE mine AS ON INSERT TO {table} DO INSTEAD NOTHING"
    for table, column in FIXED:
        yield f'UPDATE {table} SET "{column}" = "{column}"'
    yield "UPDATE installation SET secret_fingerprint = ''"
    yield "INSERT INTO older_rows VALUES ('accounts')"
    yield "UPDATE older_rows SET table_name = 'accounts'"
    yield "DELETE FROM older_rows"
    yield "UPDATE installation_journal SET body = ''"
    yield "DELETE FROM installation"
    yield "DELETE FROM api_keys"
    yield "UPDATE api_keys SET role = 'steward'"
    yield "DELETE FROM stored_answers"
    yield "DELETE FROM accounts"
    yield "UPDATE alembic_version SET version_num = ''"
    yield "CREATE TABLE mine (id integer)"
    yield "CREATE TEMPORARY TABLE journal (id integer)"
    yield "CREATE SCHEMA mine"
    yield "CREATE FUNCTION public.refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    yield "CREATE ROLE another"
    yield f"ALTER ROLE {APPLICATION} SUPERUSER"
    yield f"ALTER ROLE {APPLICATION} CREATEROLE"
    yield "SET session_replication_role = replica"
    yield "SET ROLE postgres"
    yield "COPY journal TO PROGRAM 'true'"


def test_what_would_change_the_past_is_refused(served: Database, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(served, Clock(monkeypatch))
    with _connected(libpq_url(url)) as connection:
        triggers = connection.execute(
            "SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY 2, 1"
        ).fetchall()
        assert {table for _, table in triggers} >= set(_FOREVER)
        drops = [f"DROP TRIGGER {name} ON {table}" for name, table in triggers]
        for statement in (*drops, *_statements()):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_the_role_is_nobody_but_itself(url: str) -> None:
    with _connected(libpq_url(url)) as connection:
        row = connection.execute(
            "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls FROM pg_roles"
            " WHERE rolname = current_user"
        ).fetchone()
        assert row == (False,) * 5
        assert connection.execute("SELECT current_user, session_user").fetchone() == (APPLICATION, APPLICATION)


def test_every_table_is_read_and_written(url: str) -> None:
    """A table of a later migration has to be in the script."""
    with _connected(libpq_url(url)) as connection:
        for table in Base.metadata.tables:
            query = "SELECT has_table_privilege(%s, 'SELECT'), has_table_privilege(%s, 'INSERT')"
            may = (True, table != "older_rows")  # which a migration writes
            assert connection.execute(query, [table, table]).fetchone() == may, table


def test_the_script_takes_back_what_was_granted_by_hand(postgresql_url: str, url: str) -> None:
    with _connected(libpq_url(postgresql_url)) as owner:
        owner.execute(f"GRANT ALL ON journal TO {APPLICATION}")
        owner.execute(f"GRANT UPDATE (body) ON journal TO {APPLICATION}")
        owner.execute("GRANT ALL ON SCHEMA public TO PUBLIC")
    application_url(postgresql_url)
    with _connected(libpq_url(url)) as connection:
        for statement in ("DELETE FROM journal", "UPDATE journal SET body = ''", "CREATE TABLE mine (id integer)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_any_character_may_stand_in_the_password(postgresql_url: str) -> None:
    stored = "SELECT rolpassword FROM pg_authid WHERE rolname = %s"
    with _connected(libpq_url(postgresql_url)) as owner:
        assert run_script(postgresql_url, 'it\'s "a" \\ :password; --').returncode == 0
        first = owner.execute(stored, [APPLICATION]).fetchone()
        assert first is not None
        assert str(first[0]).startswith("SCRAM-SHA-256$")
        for nothing in (None, ""):  # an empty password would lock the servers out
            assert run_script(postgresql_url, nothing).returncode == 0
            assert owner.execute(stored, [APPLICATION]).fetchone() == first


def test_a_large_object_of_the_role_does_not_hold_up_the_script(postgresql_url: str, url: str) -> None:
    """Every role may make one; only the database's administrator could forbid it."""
    with _connected(libpq_url(url)) as role:
        made = role.execute("SELECT lo_create(0)").fetchone()
        assert made is not None
        try:
            done = run_script(postgresql_url)
        finally:
            role.execute("SELECT lo_unlink(%s)", made)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("given", "taken", "reason"),
    [
        ("ALTER ROLE {} CREATEDB", "ALTER ROLE {} NOCREATEDB", "without attributes"),
        ("GRANT pg_write_all_data TO {}", "REVOKE pg_write_all_data FROM {}", "a member of no other role"),
        ("ALTER TABLE journal OWNER TO {}", "ALTER TABLE journal OWNER TO postgres", "own nothing"),
    ],
)
@pytest.mark.usefixtures("url")
def test_a_role_with_other_rights_is_refused(postgresql_url: str, given: str, taken: str, reason: str) -> None:
    with _connected(libpq_url(postgresql_url)) as owner:
        owner.execute(given.format(APPLICATION))
        try:
            done = run_script(postgresql_url)
        finally:
            owner.execute(taken.format(APPLICATION))  # the role is the whole server's
    assert done.returncode != 0
    assert reason in done.stderr


def test_an_operator_is_told_which_rights_are_missing(postgresql_url: str, url: str) -> None:
    with _connected(libpq_url(postgresql_url)) as owner:
        owner.execute(f"REVOKE INSERT ON installation FROM {APPLICATION}")
    with _opened(url) as database, pytest.raises(Unavailable) as refused:
        check_secret(database, SECRET)
    assert "deploy/postgres-roles.sql" in str(refused.value.for_operator)


@pytest.mark.usefixtures("url")  # somebody else has made the role
@pytest.mark.parametrize("empty_database_url", ["postgresql"], indirect=True)
def test_an_owner_who_is_no_superuser_migrates_and_grants(empty_database_url: str) -> None:
    database = make_url(empty_database_url).database
    with _connected(libpq_url(empty_database_url)) as administrator:
        administrator.execute("CREATE ROLE agency LOGIN")
        try:
            administrator.execute(f"ALTER DATABASE {database} OWNER TO agency")
            owned = make_url(empty_database_url).set(username="agency").render_as_string(hide_password=False)
            migrate(owned)
            with _opened(application_url(owned)) as served:
                prepare(served, embedded=False)
                check_secret(served, SECRET)
                open_account(served)
        finally:
            administrator.execute(f"REASSIGN OWNED BY agency TO {administrator.info.user}")
            administrator.execute("DROP OWNED BY agency")
            administrator.execute("DROP ROLE agency")


def test_rows_that_a_policy_hides_are_an_error(served: Database, postgresql_url: str) -> None:
    """No setting of the role may hide rows: those that one statement alone does not see would be taken for gone."""
    with _connected(libpq_url(postgresql_url)) as owner, _opened(served.url) as database:
        check_secret(database, SECRET)
        name = make_url(postgresql_url).database
        owner.execute(f'ALTER ROLE {APPLICATION} IN DATABASE "{name}" SET row_security = on'.encode())
        before = _read_journal(database)
        owner.execute("ALTER TABLE installation_journal ENABLE ROW LEVEL SECURITY")
        owner.execute("CREATE POLICY first_few ON installation_journal USING (seq < 2)")
        for act in (_read_journal, make_key):
            with pytest.raises(Unavailable, match="42501") as refused:
                act(database)
            assert "row-level security" in str(refused.value.for_operator)
        owner.execute("ALTER TABLE installation_journal DISABLE ROW LEVEL SECURITY")
        assert _read_journal(database) == before


def _read_journal(database: Database) -> list[dict[str, Any]]:
    with database.read() as connection:
        return list(installation_journal.read(connection, SECRET))
