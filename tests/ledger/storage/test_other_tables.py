"""The owner of a PostgreSQL database has other tables, functions or operators answer in place of the ledger's."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url, text

from service.errors import StartupRefused, Unavailable
from service.ledger.access import authentication
from service.ledger.installation import high_water_keeper, installation_journal
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.journal import canonical_json
from service.ledger.storage import clock
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.migrate import migrate, prepare
from service.ledger.storage.schema import hold_schema, require_schema, schema_faults
from service.ledger.storage.secret import Secret
from service.ledger.storage.transaction import bound_secret
from service.ledger.verification.recompute import recompute
from tests.ledger.charging import charge, entries_of, open_account
from tests.ledger.keys import make_key, revoke
from tests.ledger.roles import APPLICATION, served_by_role
from tests.postgres_server import session

_PLAN = {"type": "geometric", "epsilon": "1", "name": "dear"}
_CHEAP = {"type": "geometric", "epsilon": "1/10", "name": "cheap"}


@pytest.fixture
def served(postgresql_url: str, secret: Secret) -> Iterator[Database]:
    """A ledger with an account, of the application's role."""
    with served_by_role(postgresql_url, secret) as database:
        charge(database, _PLAN)
        yield database


def _make_evil_schema(owner: "psycopg.Connection[tuple[Any, ...]]", forged: dict[int, str]) -> None:
    """Make a schema whose view gives forged texts to all statements but those that read some rows at a time."""
    values = ", ".join(f"({seq}::bigint, $q${body}$q$::text)" for seq, body in forged.items())
    for statement in (
        "CREATE SCHEMA evil",
        f"GRANT USAGE ON SCHEMA evil TO {APPLICATION}",
        "CREATE FUNCTION evil.current_schema() RETURNS name LANGUAGE sql STABLE AS $f$ SELECT 'public'::name $f$",
        "CREATE VIEW evil.journal AS SELECT account_id, seq, kind, release_id, CASE WHEN current_query() !~ 'LIMIT'"
        f" THEN coalesce((SELECT forged.body FROM (VALUES {values}) AS forged (seq, body) WHERE forged.seq ="
        " journal.seq), body) ELSE body END AS body, hash FROM public.journal",
        f"GRANT SELECT, INSERT ON evil.journal TO {APPLICATION}",
        f"ALTER ROLE {APPLICATION} IN DATABASE {owner.info.dbname} SET search_path = evil, public, pg_catalog",
    ):
        owner.execute(statement.encode())


def test_tables_of_a_schema_that_the_role_finds_first_are_not_read(served: Database, postgresql_url: str) -> None:
    """Neither by a server, on connections of its own, nor by a command, which says why it does not start."""
    true = entries_of(served)
    said = json.loads(true[1].body)
    said["content"]["plan"] = _CHEAP
    with session(postgresql_url) as owner:
        _make_evil_schema(owner, {2: canonical_json.canonical(said)})
    with closing(open_database(served.url)) as database:
        database.secret = served.secret
        assert entries_of(database) == true
        assert recompute(database, "people", apply=True).prices == []
        require_schema(database)
        with pytest.raises(StartupRefused, match=r"in the schema public, .* names the schema evil before"):
            prepare(database, embedded=False)


def _with_options(url: str, options: str) -> str:
    return make_url(url).update_query_dict({"options": options}).render_as_string(hide_password=False)


@pytest.mark.parametrize("named", ["ledger", '"Led ger"'])
@pytest.mark.parametrize("empty_database_url", ["postgresql"], indirect=True)
def test_the_connections_options_name_the_schema(empty_database_url: str, secret: Secret, named: str) -> None:
    with session(empty_database_url) as owner:
        owner.execute(f"CREATE SCHEMA {named}".encode())
        url = _with_options(empty_database_url, "-c search_path=" + named.replace(" ", "\\ "))
        migrate(url)
        with closing(open_database(url)) as database:
            database.secret = secret
            open_account(database)
            assert owner.execute(f"SELECT name FROM {named}.accounts".encode()).fetchall() == [("people",)]
            with database.read() as connection:
                hold_schema(connection)
                assert schema_faults(connection) == []


@pytest.mark.parametrize("named", ["ledger,public", "pg_catalog", "$user"])
def test_options_that_do_not_name_one_schema_are_refused(postgresql_url: str, named: str) -> None:
    url = _with_options(postgresql_url, f'-csearch_path="{named}"' if named == "$user" else f"-csearch_path={named}")
    with closing(open_database(url)) as database:
        if named == "$user":  # a schema's name like any other
            with pytest.raises(StartupRefused, match=r"schema, \$user, does not exist"):
                prepare(database, embedded=False, begin=False)
        else:
            with pytest.raises(StartupRefused, match="not one schema"):
                prepare(database, embedded=False, begin=False)


def _put_view(owner: "psycopg.Connection[tuple[Any, ...]]", table: str, condition: str = "true") -> None:
    """Have a view stand in the place of a table, which gives only some rows."""
    with owner.transaction():
        owner.execute(f"ALTER TABLE {table} RENAME TO true_rows".encode())
        owner.execute(f"CREATE VIEW {table} AS SELECT * FROM true_rows WHERE {condition}".encode())
        owner.execute(f"GRANT SELECT, INSERT ON {table} TO {APPLICATION}".encode())


def test_a_view_in_a_tables_place_stops_the_server(served: Database, postgresql_url: str, file: HighWaterFile) -> None:
    with MarkKeeper(served, file).keeping(), session(postgresql_url) as owner:
        charge(served, _PLAN)
        _put_view(owner, "journal")
        deadline = time.monotonic() + 30
        while served.stopped is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with pytest.raises(Unavailable, match="tables are not as the service made them"):
        charge(served, _PLAN)


def test_tables_of_another_version_stop_no_server(served: Database, postgresql_url: str, file: HighWaterFile) -> None:
    """It writes nothing while they are, as each transaction finds."""
    with session(postgresql_url) as owner:
        owner.execute("ALTER TABLE accounts DISABLE TRIGGER ALL")
        owner.execute("UPDATE alembic_version SET version_num = '9999'")
        MarkKeeper(served, file)._look()
        assert served.stopped is None
        with pytest.raises(Unavailable, match="another version"):
            charge(served, _PLAN)


def test_a_transaction_that_holds_the_tables_keeps_them(served: Database, postgresql_url: str) -> None:
    with session(postgresql_url) as owner:
        with served.read() as connection:
            hold_schema(connection)
            owner.execute("SET lock_timeout = 50")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                _put_view(owner, "journal")
        _put_view(owner, "journal")
        for to_read in (False, True):
            with pytest.raises(StartupRefused, match="the table journal"), served.read() as connection:
                hold_schema(connection, to_read=to_read)
        owner.execute("DROP VIEW journal")
    with pytest.raises(StartupRefused, match="is missing, or this role"), served.read() as connection:
        hold_schema(connection)


_BETTER = (
    "CREATE FUNCTION alike(varchar, varchar) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true'",
    "CREATE OPERATOR = (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = alike)",
)


@pytest.mark.parametrize(
    ("statements", "fault"),
    [
        (_BETTER, "operator public.=(character varying,character varying)"),
        (
            ("CREATE FUNCTION length(varchar) RETURNS integer LANGUAGE sql AS 'SELECT 1'",),
            "function public.length(character varying)",
        ),
        (
            (
                "CREATE DOMAIN other AS text",
                "CREATE FUNCTION length(other) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
            ),
            "function public.length(public.other)",
        ),
        (
            ("CREATE FUNCTION substr(text, integer DEFAULT 1) RETURNS text LANGUAGE sql AS $f$ SELECT 'x'::text $f$",),
            "function public.substr(text,integer)",
        ),
        (("CREATE TABLE more () INHERITS (journal)",), "child public.more of journal"),
        (
            ("CREATE DOMAIN other AS varchar", "ALTER TABLE journal ALTER kind TYPE other"),
            "type of journal.kind",
        ),
    ],
)
def test_objects_that_answer_in_place_of_postgresqls_own_are_refused(
    served: Database, postgresql_url: str, statements: tuple[str, ...], fault: str
) -> None:
    with session(postgresql_url) as owner:
        for statement in statements:
            owner.execute(statement.encode())
    if statements == _BETTER:
        with served.read() as connection:
            assert connection.scalar(text("SELECT 'a'::varchar = 'b'::varchar")), "this is the danger"
    for to_read in (False, True):
        with pytest.raises(StartupRefused, match=f"has, added or changed, the .*{re.escape(fault)}"):
            require_schema(served, to_read=to_read)
    with served.read() as connection:
        assert f"the {fault} does not belong to the ledger" in schema_faults(connection)


def test_functions_that_no_statement_of_ours_could_mean_are_let_be(served: Database, postgresql_url: str) -> None:
    with session(postgresql_url) as owner:
        owner.execute("CREATE FUNCTION current_schema() RETURNS name LANGUAGE sql AS $f$ SELECT 'evil'::name $f$")
        owner.execute("CREATE FUNCTION alike(varchar, varchar) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
        owner.execute("CREATE FUNCTION length(accounts) RETURNS integer LANGUAGE sql AS 'SELECT 1'")
        require_schema(served)


@pytest.mark.parametrize("told_by", ["mark", "journal"])
def test_a_revocation_that_is_hidden_from_two_statements_alone_ends_the_key(
    served: Database, postgresql_url: str, file: HighWaterFile, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    """They are those that learn of ends. The schema is not looked at here."""
    monkeypatch.setattr(high_water_keeper, "unexpected", lambda _: None)
    secret, at = bound_secret(served), clock.now()
    record, token = make_key(served, at=at)
    keeper = MarkKeeper(served, file)
    keeper.advance(everything=True)
    installation_journal.follow(served, secret)
    with session(postgresql_url) as owner, closing(open_database(served.url)) as command:
        command.secret = secret
        row = owner.execute("SELECT revoked_at, seal FROM api_keys").fetchone()
        last = owner.execute("SELECT max(seq) FROM installation_journal").fetchone()
        assert last is not None
        commands = MarkKeeper(command, file, serves=False)
        revoke(command, record.id, at)
        if told_by == "mark":
            commands.advance()
            hidden = "true"
        else:
            hidden = "current_query() ~ 'max[(]' OR current_query() ~ 'installation_journal.seq = '"
        _put_view(owner, "installation_journal", f"seq <= {last[0]} OR NOT ({hidden})")
        owner.execute("UPDATE api_keys SET revoked_at = %s, seal = %s", row)
        assert authentication.authenticate(served, secret, token, at) is not None, "until the next look"
        keeper._look()
        keeper._follow_ends(sound=True)
    assert served.stopped is not None
    with pytest.raises(Unavailable, match="the ledger lacks"):
        authentication.authenticate(served, secret, token, at)
