"""The schema is held against the migrations': whatever is missing, changed or added is found and named."""

import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from unittest.mock import Mock

import pytest
from sqlalchemy import make_url, select, text

from service.errors import OtherSchema, StartupRefused, Unavailable
from service.ledger.storage import schema
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.migrate import downgrade, migrate
from service.ledger.storage.schema import (
    EXPECTED,
    hold_schema,
    present_schema,
    require_parsed_schema,
    require_schema,
    schema_faults,
)
from service.ledger.storage.tables import Job
from tests.ledger.writing import run
from tests.postgres_server import installed, libpq_url

_JOURNAL = "trigger journal_no_delete on journal"
_STAY = "trigger journal_append_only on journal"
_UNGUARDED = "CREATE TRIGGER journal_no_delete BEFORE DELETE ON journal WHEN 0 BEGIN SELECT 1; END"
_DROPPING = "CREATE TRIGGER more BEFORE INSERT ON journal BEGIN SELECT RAISE(IGNORE); END"
_LENIENT = "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
_MORE = "the index more on jobs does not belong to the ledger"
_GUARD = "CREATE TRIGGER more BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION refuse_change()"
_REFERRING = "CREATE TABLE more (id VARCHAR(36) REFERENCES jobs (id) ON DELETE CASCADE)"
_IN_CAPITALS = (
    "PRAGMA writable_schema = ON",
    "UPDATE sqlite_master SET type = 'TABLE' WHERE name = 'more'",
    "PRAGMA writable_schema = OFF",
)
_HIDDEN_REFERENCE = 'CREATE VIRTUAL TABLE pragma_foreign_key_list USING fts4(id, seq, "table", "from")'
_CHECK = "ALTER TABLE accounts ADD CONSTRAINT accounts_releases CHECK (releases >= -9)"

_REMOVED = {
    "sqlite": {
        "DROP TABLE known_costs": "table known_costs",
        "ALTER TABLE releases DROP COLUMN accountant": "column releases.accountant",
        "DROP TRIGGER journal_no_delete": _JOURNAL,
        "DROP INDEX holds_due": "index holds_due on holds",
    },
    "postgresql": {
        "DROP TABLE known_costs": "table known_costs",
        "ALTER TABLE releases DROP COLUMN accountant": "column releases.accountant",
        "DROP TRIGGER journal_append_only ON journal": _STAY,
        "ALTER TABLE journal DISABLE TRIGGER journal_append_only": _STAY,
        "DROP FUNCTION refuse_change CASCADE": "trigger accounts_by_entry on accounts",
        "DROP INDEX holds_due": "index holds_due on holds",
        "ALTER TABLE accounts DROP CONSTRAINT accounts_releases": "constraint accounts_releases on accounts",
    },
}
_ALTERED: dict[str, list[tuple[list[str], str]]] = {
    "sqlite": [
        (["DROP TRIGGER journal_no_delete", _UNGUARDED], f"the {_JOURNAL} was changed"),
        ([_DROPPING], "the trigger more on journal does not belong to the ledger"),
        (
            ["CREATE TRIGGER more BEFORE INSERT ON DRAWS BEGIN SELECT RAISE(IGNORE); END"],
            "the trigger more on draws does not belong to the ledger",
        ),
        ([_REFERRING], "the reference of more to jobs does not belong to the ledger"),
        (
            [
                "CREATE TRIGGER more BEFORE INSERT ON draws BEGIN SELECT RAISE(IGNORE); END",
                "PRAGMA writable_schema = ON",
                "UPDATE sqlite_master SET tbl_name = 'draws' || char(0) || 'x' WHERE name = 'more'",
                "PRAGMA writable_schema = OFF",
            ],
            "the object with a NUL character does not belong to the ledger",
        ),
        ([_REFERRING, _HIDDEN_REFERENCE], "the object pragma_foreign_key_list does not belong to the ledger"),
        ([_REFERRING, *_IN_CAPITALS], "the reference of more to jobs does not belong to the ledger"),
        (
            ["DROP INDEX holds_due", "CREATE INDEX holds_due ON holds (release_id)"],
            "the index holds_due on holds was changed",
        ),
        (["ALTER TABLE jobs ADD COLUMN counts TEXT"], "the column jobs.counts does not belong to the ledger"),
    ],
    "postgresql": [
        ([_LENIENT], "the trigger draws_fixed on draws was changed"),
        (
            ["CREATE RULE kept AS ON INSERT TO journal DO INSTEAD NOTHING"],
            "the rule kept on journal does not belong to the ledger",
        ),
        (
            ["ALTER TABLE journal ENABLE ROW LEVEL SECURITY"],
            "the row security on journal does not belong to the ledger",
        ),
        (["CREATE POLICY few ON journal USING (seq < 9)"], "the policy few on journal does not belong to the ledger"),
        (["ALTER SEQUENCE accounts_id_seq MINVALUE 0"], "the sequence accounts_id_seq on accounts was changed"),
        (["ALTER TABLE stored_answers SET UNLOGGED"], "the table stored_answers was changed"),
        (["ALTER TABLE accounts ALTER COLUMN name DROP NOT NULL"], "the column accounts.name was changed"),
        (
            ["ALTER TABLE accounts DROP CONSTRAINT accounts_releases", _CHECK],
            "the constraint accounts_releases on accounts was changed",
        ),
        (
            [_GUARD, "ALTER TABLE jobs ENABLE REPLICA TRIGGER more"],
            "the trigger more on jobs for replicas does not belong to the ledger",
        ),
        (["CREATE INDEX more ON jobs (principal)"], _MORE),
        ([_REFERRING], "the reference of public.more to jobs does not belong to the ledger"),
        (
            [
                "CREATE FUNCTION own_code() RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 0; END'",
                "CREATE TABLE more (LIKE accounts) PARTITION BY LIST ((id * 0 + own_code()))",
                "ALTER TABLE more ATTACH PARTITION accounts FOR VALUES IN (0)",
            ],
            "the parent public.more of accounts does not belong to the ledger",
        ),
        (
            ["CREATE TABLE more (seq bigint NOT NULL)", "ALTER TABLE journal INHERIT more"],
            "the parent public.more of journal does not belong to the ledger",
        ),
        (
            ["CREATE TYPE more AS (version_num varchar(32))", "ALTER TABLE alembic_version OF more"],
            "the type of alembic_version does not belong to the ledger",
        ),
        (
            ["ALTER TABLE journal ALTER seq ADD GENERATED BY DEFAULT AS IDENTITY"],
            "the type of journal.seq does not belong to the ledger",
        ),
        (
            [
                "ALTER TABLE accounts ALTER name DROP NOT NULL",
                "ALTER TABLE accounts ADD CONSTRAINT more NOT NULL name NOT VALID",
            ],
            "the constraint more on accounts does not belong to the ledger",
        ),
        (
            ["ALTER TABLE draws ALTER noisy_removed_at SET DEFAULT 'now'"],
            "the column draws.noisy_removed_at was changed",
        ),
        (
            ["CREATE STATISTICS more ON lower(principal), state FROM jobs"],
            "the statistics more on jobs does not belong to the ledger",
        ),
        (
            [
                "ALTER TABLE alembic_version RENAME TO told",
                "CREATE VIEW alembic_version AS SELECT * FROM told",
            ],
            "the view alembic_version does not belong to the ledger",
        ),
    ],
}


# The owner's objects in the ledger's schema, which have the names and arguments of PostgreSQL's own.
_NAMESAKES = {
    "length": "CREATE FUNCTION public.length(bytea) RETURNS integer LANGUAGE sql AS 'SELECT pg_catalog.length($1)'",
    "substr": "CREATE FUNCTION public.substr(text, integer, integer) RETURNS text IMMUTABLE LANGUAGE sql"
    " AS 'SELECT pg_catalog.substr($1, $2, $3)'",
    "nextval": "CREATE FUNCTION public.nextval(regclass) RETURNS bigint LANGUAGE sql"
    " AS 'SELECT pg_catalog.nextval($1)'",
    "text": "CREATE DOMAIN public.text AS pg_catalog.text CHECK (pg_catalog.length(VALUE) > 0)",
    "||": "CREATE OPERATOR public.|| (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text,"
    " FUNCTION = pg_catalog.textcat)",
    "<": "CREATE OPERATOR public.< (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = pg_catalog.int84lt)",
}
_USES = [
    (
        "length",
        [
            "ALTER TABLE draws DROP CONSTRAINT draws_noisy",
            "ALTER TABLE draws ADD CONSTRAINT draws_noisy"
            " CHECK ((noisy_removed_at IS NOT NULL) = (public.length(noisy) = 0))",
        ],
        "constraint draws_noisy on draws",
    ),
    (
        "substr",
        [
            "ALTER TABLE api_keys DROP CONSTRAINT api_keys_name",
            "ALTER TABLE api_keys ADD CONSTRAINT api_keys_name"
            " CHECK (public.substr(name, 1, 5) <> 'oidc:' OR revoked_at IS NOT NULL)",
        ],
        "constraint api_keys_name on api_keys",
    ),
    (
        "nextval",
        ["ALTER TABLE accounts ALTER id SET DEFAULT public.nextval('accounts_id_seq')"],
        "column accounts.id",
    ),
    (
        "text",
        [
            "DROP INDEX releases_by_state",
            "CREATE INDEX releases_by_state ON releases (account_id, state, seq)"
            " WHERE state <> CAST('committed' AS public.text)",
        ],
        "index releases_by_state on releases",
    ),
    (
        "||",
        [
            "DROP INDEX draws_by_turn",
            "CREATE INDEX draws_by_turn ON draws ((release_id OPERATOR(public.||) mechanism), repetition)",
        ],
        "index draws_by_turn on draws",
    ),
    (
        "<",
        [
            "DROP TRIGGER journal_numbered ON journal",
            "CREATE TRIGGER journal_numbered BEFORE INSERT ON journal FOR EACH ROW"
            " WHEN (NEW.seq OPERATOR(public.<) 1) EXECUTE FUNCTION refuse_change()",
        ],
        "trigger journal_numbered on journal",
    ),
]


def _faults(database: Database) -> list[str]:
    with database.read() as connection:
        return schema_faults(connection)


def test_the_committed_schema_is_that_of_the_migrations(database: Database) -> None:
    """``make schema`` writes it anew after a migration."""
    with database.read() as connection:
        assert json.loads(EXPECTED.read_text(encoding="utf-8"))[database.kind] == present_schema(connection)
    require_schema(database)


@pytest.mark.parametrize("version", ["base", "0001", "0006"])
def test_an_older_ledger_that_is_migrated_has_the_same(database: Database, version: str) -> None:
    downgrade(database, version)
    migrate(database)
    assert _faults(database) == []


def test_what_was_removed_is_named_and_ends_a_start(new_database: Callable[[], Database]) -> None:
    for statement, lost in _REMOVED[new_database().kind].items():
        database = new_database()
        run(database, statement)
        assert f"the {lost} is missing" in _faults(database)
        with pytest.raises(StartupRefused, match=f"the database lacks the {lost}"):
            require_schema(database)


def test_what_can_be_read_is_verified_all_the_same(new_database: Callable[[], Database]) -> None:
    for statement, lost in _REMOVED[new_database().kind].items():
        database = new_database()
        run(database, statement)
        if lost.startswith(("table", "column")):
            with pytest.raises(StartupRefused, match=f"the database lacks the {lost}"):
                require_schema(database, to_read=True)
        else:
            require_schema(database, to_read=True)


def test_what_was_changed_or_added_is_named(new_database: Callable[[], Database]) -> None:
    for statements, fault in _ALTERED[new_database().kind]:
        database = new_database()
        run(database, *statements)
        assert fault in _faults(database)
        if fault == _MORE:
            require_schema(database)
            require_schema(database, to_read=True)
            continue
        if fault.startswith(
            ("the trigger", "the rule", "the policy", "the row security", "the column", "the table", "the sequence")
        ):
            require_schema(database, to_read=True)
        else:
            with pytest.raises(StartupRefused, match="has, added or changed, "):
                require_schema(database, to_read=True)
        kind = fault.split()[1]
        with pytest.raises(StartupRefused, match=f"added or changed, .*the {kind} |or changed, the {kind} ") as refused:
            require_schema(database)
        assert "\n" not in str(refused.value)


_ADDED_INDEXES: dict[str, dict[str, bool]] = {  # whether it is a plain one
    "sqlite": {
        "CREATE INDEX more ON jobs (principal, state DESC)": True,
        "CREATE UNIQUE INDEX more ON jobs (principal)": False,
        "CREATE INDEX more ON jobs (principal) WHERE state = 'done'": False,
        "CREATE INDEX more ON jobs (length(principal))": False,
    },
    "postgresql": {
        "CREATE INDEX more ON jobs (principal, state DESC)": True,
        "CREATE INDEX more ON jobs USING hash (principal)": True,
        "CREATE INDEX more ON jobs (principal) INCLUDE (state)": True,
        "CREATE UNIQUE INDEX more ON jobs (principal)": False,
        "CREATE INDEX more ON jobs (principal) WHERE state = 'done'": False,
        "CREATE INDEX more ON jobs (length(principal))": False,
        "CREATE INDEX more ON jobs (principal public.own_ops)": False,
    },
}
_OWN_CLASS = (
    "CREATE OPERATOR CLASS public.own_ops FOR TYPE text USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =,"
    " OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 bttextcmp(text, text)"
)


def test_only_a_plain_index_may_be_added(new_database: Callable[[], Database]) -> None:
    database = new_database()
    if database.kind == "postgresql":
        run(database, _OWN_CLASS)
    for statement, plain in _ADDED_INDEXES[database.kind].items():
        run(database, statement)
        for to_read in (False, True):
            if plain:
                require_schema(database, to_read=to_read)
            else:
                with pytest.raises(StartupRefused, match="has, added or changed, the index more on jobs"):
                    require_schema(database, to_read=to_read)
        run(database, "DROP INDEX more")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_session_without_its_triggers_is_another_schema(database: Database) -> None:
    with database.read() as connection:
        assert schema_faults(connection) == []
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        assert schema_faults(connection) == ["the setting session_replication_role does not belong to the ledger"]


@pytest.mark.parametrize(("namesake", "use", "changed"), _USES, ids=[namesake for namesake, _, _ in _USES])
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_namesake_of_postgresqls_own_is_found_where_it_is_used(
    database: Database, namesake: str, use: list[str], changed: str
) -> None:
    """Named with its schema, it is not PostgreSQL's own; unused, it is nobody's business."""
    run(database, _NAMESAKES[namesake])
    assert _faults(database) == []
    run(database, *[statement.replace("public.", "pg_catalog.") for statement in use])
    assert _faults(database) == [], "the same with PostgreSQL's own"
    name = changed.split()[1]
    redone = [f"DROP TRIGGER {name} ON journal", *use[1:]] if changed.startswith("trigger") else use
    run(database, *redone)
    assert _faults(database) == [f"the {changed} was changed"]
    with pytest.raises(StartupRefused, match=f"has, added or changed, the {changed}"):
        require_schema(database)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_conversion_that_a_definition_does_not_show_makes_another(database: Database) -> None:
    """PostgreSQL writes no conversion that it makes by itself, but records what an object depends on."""
    found = []
    run(
        database,
        "CREATE TYPE own AS ENUM ('yes')",
        "CREATE FUNCTION converted(own) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true'",
        "CREATE CAST (own AS boolean) WITH FUNCTION converted(own) AS IMPLICIT",
    )
    for made in ("boolean", "own"):
        value = "true" if made == "boolean" else "'yes'::public.own"
        run(
            database,
            f"CREATE FUNCTION said() RETURNS {made} IMMUTABLE LANGUAGE sql AS $$ SELECT {value} $$",
            "ALTER TABLE jobs ADD CONSTRAINT more CHECK (said())",
        )
        with database.read() as connection:
            text_of = text("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'more'")
            found.append((connection.scalar(text_of), present_schema(connection)["constraint more on jobs"]))
        run(database, "ALTER TABLE jobs DROP CONSTRAINT more", "DROP FUNCTION said()")
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER FUNCTION refuse_change() SECURITY DEFINER",
        "ALTER FUNCTION refuse_change() SET search_path = evil",
        "ALTER FUNCTION refuse_change() IMMUTABLE",
    ],
)
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_triggers_function_that_runs_otherwise_is_another(database: Database, change: str) -> None:
    run(database, change)
    assert "the trigger draws_fixed on draws was changed" in _faults(database)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIRTUAL TABLE json_each USING fts4(key, value)",
        "CREATE VIRTUAL TABLE Json_Tree USING fts5(key, value)",
        "CREATE TABLE jsonb_each (value)",
        "CREATE VIRTUAL TABLE PRAGMA_TABLE_INFO USING fts4(name)",
        "CREATE TABLE pragma_table_info (name)",
        "CREATE VIEW Pragma_Index_List AS SELECT 1",
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_table_in_a_functions_place_is_named(database: Database, statement: str) -> None:
    """A virtual table takes the function's arguments; any other makes the statements fail."""
    run(database, "CREATE INDEX json_by ON jobs (principal)", statement)
    name = statement.removeprefix("CREATE ").removeprefix("VIRTUAL ").split()[1]
    if name == "json_each":
        with database.read() as connection:
            assert connection.scalar(text("SELECT count(*) FROM json_each('[1, 2]')")) == 0, "this is the danger"
    assert f"the object {name} does not belong to the ledger" in _faults(database)
    for to_read in (False, True):
        with pytest.raises(StartupRefused, match=f"has, added or changed, the object {name}[:,]"):
            require_schema(database, to_read=to_read)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_index_of_the_schemas_own_table_hides_nothing(database: Database) -> None:
    """It has the rows of another table, and SQLite takes it for the rows of its own."""
    run(
        database,
        "CREATE TABLE told (type, name, tbl_name, rootpage, sql)",
        "INSERT INTO told SELECT * FROM sqlite_master WHERE tbl_name <> 'told'",
        "CREATE INDEX of_told ON told (lower(tbl_name), type, name, tbl_name, sql)",
        _DROPPING,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET tbl_name = 'sqlite_master', sql = replace(sql, 'told (', 'sqlite_master (')"
        " WHERE name = 'of_told'",
        "PRAGMA writable_schema = OFF",
    )
    with closing(open_database(database.url)) as opened_anew:
        with opened_anew.read() as connection:
            found = text("SELECT count(*) FROM sqlite_master WHERE lower(tbl_name) = 'journal' AND name = 'more'")
            assert connection.scalar(found) == 0, "this is the danger"
        for to_read in (False, True):
            with pytest.raises(StartupRefused, match="has, added or changed, the object of_told:"):
                require_schema(opened_anew, to_read=to_read)


@pytest.mark.parametrize(("space", "faults"), [("\n\t", []), ("\u00a0", [f"the {_JOURNAL} was changed"])])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_white_space_that_belongs_to_a_name_is_a_change(database: Database, space: str, faults: list[str]) -> None:
    """Only ASCII's separates words, so any amount of it is one."""
    with database.read() as connection:
        made = connection.scalar(text("SELECT sql FROM sqlite_master WHERE name = 'journal_no_delete'"))
    run(database, "DROP TRIGGER journal_no_delete", made.replace("entries are", f"entries{space}are"))
    assert _faults(database) == faults


def test_tables_of_others_are_nobodys_business(database: Database) -> None:
    run(database, "CREATE TABLE somebody_elses (id INTEGER)")
    assert _faults(database) == []


def test_a_dump_that_is_restored_has_the_same(postgresql_url: str) -> None:
    """PostgreSQL writes a dump in words of its own."""
    plain = libpq_url(postgresql_url)
    dump = subprocess.run([installed() / "pg_dump", "--clean", plain], check=True, capture_output=True).stdout
    restore = [str(installed() / "psql"), "--quiet", "--set=ON_ERROR_STOP=1", plain]
    subprocess.run(restore, input=dump, check=True, capture_output=True)
    database = open_database(postgresql_url)
    assert _faults(database) == []
    database.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("number_is_put_back", [False, True])
def test_a_trigger_that_is_no_longer_in_the_file_is_in_force_nowhere(
    database_url: str, database: Database, number_is_put_back: bool
) -> None:
    """The attack: connections keep what they read of the schema until its number changes, and deleting changes none."""
    path = str(make_url(database_url).database)
    with (
        closing(open_database(database_url)) as later,
        closing(sqlite3.connect(path, isolation_level=None)) as attacker,
    ):
        database.begun = later.begun = require_parsed_schema
        run(database, "UPDATE jobs SET state = state")
        (number,) = attacker.execute("PRAGMA schema_version").fetchone()
        attacker.execute("BEGIN")
        attacker.execute("CREATE TRIGGER more BEFORE INSERT ON jobs BEGIN SELECT RAISE(IGNORE); END")
        if number_is_put_back:
            attacker.execute(f"PRAGMA schema_version = {number}")
        attacker.execute("COMMIT")
        for one in (later,) if number_is_put_back else (database, later):
            with pytest.raises(OtherSchema) as refused:
                run(one, "UPDATE jobs SET state = state")
            assert "the trigger more on jobs" in refused.value.fault
            with pytest.raises(OtherSchema), one.read():
                pass
            with pytest.raises(OtherSchema):
                one.ask(select(Job.id), {})
            assert "tables are not as the service made them" in (one.stopped or "")
            one.stopped = None  # so that the connections are used again
        attacker.execute("PRAGMA writable_schema = ON")
        attacker.execute("DELETE FROM sqlite_master WHERE name = 'more'")
        names = "id, principal, parameters, state, permille, attempts, created_at"
        for number, one in enumerate((database, later)):
            run(one, f"INSERT INTO jobs ({names}) VALUES ('{number}', 'ann', '{{}}', 'queued', 0, 0, '')")
        with database.read() as connection:
            assert connection.scalar(text("SELECT count(*) FROM jobs")) == 2


def _meet_refused(database: Database) -> None:
    with pytest.raises(OtherSchema):
        run(database, "UPDATE jobs SET state = state")


def _meet_of_another_version(database: Database) -> None:
    database.version = "another"
    with pytest.raises(Unavailable, match="another version of the service"):
        run(database, "UPDATE jobs SET state = state")
    assert database.stopped is None
    database.version = database.paused = None


def _meet_while_the_check_fails(database: Database) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schema, "unexpected", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            run(database, "UPDATE jobs SET state = state")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("meet", [_meet_refused, _meet_of_another_version, _meet_while_the_check_fails])
def test_a_schema_that_was_met_counts_for_nothing_once_its_number_is_put_back(
    database_url: str, database: Database, meet: Callable[[Database], None]
) -> None:
    """The attack: a refused write has read the trigger, then the number that was compared before comes back."""
    path = str(make_url(database_url).database)
    database.begun = require_parsed_schema
    run(database, "DELETE FROM jobs")
    with closing(sqlite3.connect(path, isolation_level=None)) as attacker:
        (number,) = attacker.execute("PRAGMA schema_version").fetchone()
        attacker.execute("CREATE TRIGGER more AFTER INSERT ON jobs BEGIN DELETE FROM jobs WHERE id = NEW.id; END")
        meet(database)
        attacker.execute(f"PRAGMA schema_version = {number}")
        database.stopped = None
        _meet_refused(database)
        attacker.execute("PRAGMA writable_schema = ON")
        attacker.execute("DELETE FROM sqlite_master WHERE name = 'more'")
    database.stopped = None
    names = "id, principal, parameters, state, permille, attempts, created_at"
    run(database, f"INSERT INTO jobs ({names}) VALUES ('1', 'ann', '{{}}', 'queued', 0, 0, '')")
    with database.read() as connection:
        assert connection.scalar(text("SELECT count(*) FROM jobs")) == 1


def _meet_by_reading(database: Database) -> None:
    with pytest.raises(OtherSchema), database.read():
        pass


def _meet_by_verifying(database: Database) -> None:
    with pytest.raises(StartupRefused), database.read() as connection:
        hold_schema(connection, to_read=True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("meet", "step"), [(_meet_by_reading, 1), (_meet_by_verifying, 0)])
def test_a_view_that_a_reader_met_stands_in_no_tables_place(
    database_url: str, database: Database, meet: Callable[[Database], None], step: int
) -> None:
    """The attack: as above, for readers; HTTP ``verify`` reads the schema again even where its number is the same."""
    database.begun = require_parsed_schema
    run(database, "INSERT INTO jobs (id, principal, parameters, state, permille, attempts, created_at)"
                  " VALUES ('1', 'ann', '{}', 'queued', 0, 0, '')")  # fmt: skip
    count = text("SELECT count(*) FROM jobs")
    with database.read() as connection:
        assert connection.scalar(count) == 1
    path = str(make_url(database_url).database)
    with closing(sqlite3.connect(path, isolation_level=None)) as attacker:
        attacker.execute("PRAGMA writable_schema = ON")
        (number,) = attacker.execute("PRAGMA schema_version").fetchone()
        rows = attacker.execute("SELECT rowid, * FROM sqlite_master WHERE tbl_name = 'jobs'").fetchall()
        attacker.execute("BEGIN")
        attacker.execute("DELETE FROM sqlite_master WHERE tbl_name = 'jobs'")
        view = "CREATE VIEW jobs AS SELECT '' AS id, '' AS principal WHERE 0"
        attacker.execute("INSERT INTO sqlite_master VALUES ('view', 'jobs', 'jobs', 0, ?)", (view,))
        attacker.execute(f"PRAGMA schema_version = {number + step}")
        attacker.execute("COMMIT")
        meet(database)
        attacker.execute(f"PRAGMA schema_version = {number}")
        _meet_by_reading(database)
        attacker.execute("BEGIN")
        attacker.execute("DELETE FROM sqlite_master WHERE name = 'jobs'")
        attacker.executemany("INSERT INTO sqlite_master (rowid, type, name, tbl_name, rootpage, sql)"
                             " VALUES (?, ?, ?, ?, ?, ?)", rows)  # fmt: skip
        attacker.execute(f"PRAGMA schema_version = {number}")
        attacker.execute("COMMIT")
    with database.read() as connection:
        assert connection.scalar(count) == 1
