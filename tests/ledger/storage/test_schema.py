"""The schema is held against the migrations': whatever is missing, changed or added is found and named."""

import json
import subprocess
from collections.abc import Callable

import pytest

from service.errors import StartupRefused
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.migrate import downgrade, migrate
from service.ledger.storage.schema import EXPECTED, present_schema, require_schema, schema_faults
from tests.ledger.writing import run
from tests.postgres_server import installed, libpq_url

_JOURNAL = "trigger journal_no_delete on journal"
_STAY = "trigger journal_append_only on journal"
_UNGUARDED = "CREATE TRIGGER journal_no_delete BEFORE DELETE ON journal WHEN 0 BEGIN SELECT 1; END"
_DROPPING = "CREATE TRIGGER more BEFORE INSERT ON journal BEGIN SELECT RAISE(IGNORE); END"
_LENIENT = "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
_MORE = "the index more on jobs does not belong to the ledger"
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
        (["ALTER TABLE accounts ALTER COLUMN name DROP NOT NULL"], "the column accounts.name was changed"),
        (
            ["ALTER TABLE accounts DROP CONSTRAINT accounts_releases", _CHECK],
            "the constraint accounts_releases on accounts was changed",
        ),
        (["CREATE INDEX more ON jobs (principal)"], _MORE),
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
        if fault.startswith(("the trigger", "the rule", "the policy", "the row security", "the column")):
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
