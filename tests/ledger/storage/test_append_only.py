"""Append-only tables: the database itself refuses every statement that would change what was written."""

import contextlib
import sqlite3
from typing import Any

import pytest
from sqlalchemy import make_url, text

from service.errors import Altered, Unavailable
from service.ledger.storage.database import Database
from service.ledger.storage.migrate import downgrade, migrate
from service.ledger.storage.tables import Base
from tests.ledger.charging import account_of, charge, draw, entries_of, open_account, reserve, unseal
from tests.ledger.ledgers import LEVEL, describe, tabulate
from tests.ledger.writing import UNSTATED, as_owner, run

# What may change, and how: everything else of these tables may not.
_MAY_CHANGE = {
    "accounts": {
        "budget",
        "totals",
        "state",
        "head_seq",
        "head_hash",
        "approval_above",
        "next_expiry",
        "releases",
        "partitions_drawn",
        "partitions_undeclared",
        "seal",
        "spending_sum",
        "period_state",
        "caps",
        "cap_totals",
        "allotted",
        "approvers",
    },
    "releases": {"state", "price", "accountant", "seal"},
    "release_tags": set(),
    "journal": set(),
    "draws": {"noisy", "noisy_removed_at", "seal"},  # see test_retention
    "branches_taken": set(),
    "tabulations": set(),
    "partitions_drawn": {"drawn", "seal"},
    "descriptions": set(),
    "window_totals": {"committed", "held", "releases", "seq", "seal"},
    "allotments": {"plan", "price", "caps", "seq", "seal"},
}
FIXED = [
    (table, column.name)
    for table, free in _MAY_CHANGE.items()
    for column in Base.metadata.tables[table].columns
    if column.name not in free
]


_NUMBERS = {"releases", "partitions_drawn", "partitions_undeclared"}
MONTHS = {"calendar": "month", "participation": {"offsets": [0]}}


def _rows(database: Database) -> dict[str, list[Any]]:
    with database.read() as connection:
        return {
            table: sorted(map(tuple, connection.execute(text(f"SELECT * FROM {table}")).all()), key=str)
            for table in _MAY_CHANGE
        }


def _ledger(database: Database, name: str = "people") -> None:
    """Rows in every table."""
    open_account(database, name)
    plan = {"type": "choice", "parts": [{"type": "geometric", "epsilon": "0.01", "name": "a", "tags": ["t"]}]}
    draw(database, charge(database, plan, name=name)[0].id, plan, name=name)
    describe(database, name, description="people of a country")
    tabulate(database, name, charge(database, LEVEL, name=name)[0].id, ["g", "h"], "02")
    reserve(database, plan, name=name)
    open_account(database, f"{name}-by-month", periods=MONTHS)
    charge(database, plan, name=f"{name}-by-month", periods={"list": ["2026-01"]})
    open_account(
        database, f"{name}-share", parent=f"{name}-by-month", funding="allotted", definition="zcdp", rho="0.001"
    )
    assert all(_rows(database).values())


def _refused(database: Database, statement: str) -> None:
    before = _rows(database)
    with pytest.raises((Altered, RuntimeError)):  # by a trigger, or by a constraint
        run(database, statement)
    assert _rows(database) == before


@pytest.mark.parametrize("where", ["", " WHERE 1 = 0"])
def test_no_fixed_column_is_updated(database: Database, where: str) -> None:
    if where and database.kind == "sqlite":
        return  # its triggers are for each row, and no row is changed
    _ledger(database)
    for table, column in FIXED:
        if where and table in ("partitions_drawn", "window_totals", "allotments"):
            continue  # whose rows may change, each by itself
        _refused(database, f'UPDATE {table} SET "{column}" = "{column}"{where}')


@pytest.mark.parametrize(
    "change",
    [
        "drawn = drawn",
        "drawn = 1",
        "mechanism = 'b'",
        "repetition = 7, drawn = 9",
        "most = 9, drawn = 9",
        "most = 9, seal = 'another'",
        "drawn = 1, seal = 'another'",
        "seal = NULL, drawn = 9",
    ],
)
def test_of_the_partitions_drawn_there_are_only_ever_more(database: Database, change: str) -> None:
    open_account(database)
    release = charge(database, LEVEL)[0].id
    tabulate(database, "people", release, ["g", "h"], "02")
    run(database, "UPDATE partitions_drawn SET drawn = drawn + 1")
    with pytest.raises(Altered):
        run(database, f"UPDATE partitions_drawn SET {change}")


@pytest.mark.parametrize(
    "change", ["held = held", "seq = seq", "seq = 1", "held = '{}', seal = 'another'", "place = 7, seq = seq + 1"]
)
def test_a_window_changes_only_with_a_later_entry(database: Database, change: str) -> None:
    open_account(database, periods=MONTHS)
    charge(database, LEVEL, periods={"list": ["2026-01"]})
    run(database, "UPDATE window_totals SET seq = seq + 1")
    with pytest.raises(Altered):
        run(database, f"UPDATE window_totals SET {change}")


def test_nothing_is_deleted(database: Database) -> None:
    _ledger(database)
    for table in _MAY_CHANGE:
        _refused(database, f"DELETE FROM {table}")
        if database.kind == "postgresql":
            _refused(database, f"TRUNCATE {table} CASCADE")


def test_nothing_is_replaced(database: Database) -> None:
    """SQLite's REPLACE deletes the old row without a word to a trigger of deletion; PostgreSQL's upsert updates."""
    _ledger(database)
    before = _rows(database)
    for table in _MAY_CHANGE:
        if database.kind == "sqlite":
            names = ", ".join(f'"{column.name}"' for column in Base.metadata.tables[table].columns)
            for verb in ("INSERT OR REPLACE", "REPLACE"):
                with pytest.raises(Altered):
                    run(database, f"{verb} INTO {table} ({names}) SELECT {names} FROM {table}")
        else:
            keys = ", ".join(column.name for column in Base.metadata.tables[table].primary_key)
            first = next(iter(Base.metadata.tables[table].primary_key)).name
            upsert = f"ON CONFLICT ({keys}) DO UPDATE SET {first} = excluded.{first}"
            _refused(database, f"INSERT INTO {table} SELECT * FROM {table} {upsert}")
    assert _rows(database) == before


@pytest.mark.parametrize("table", ["releases", "draws", "accounts"])
def test_nothing_is_replaced_by_its_other_key(database: Database, table: str) -> None:
    _ledger(database)
    key = "99" if table == "accounts" else "'new'"
    rest = [column.name for column in Base.metadata.tables[table].columns if column.name != "id"]
    columns = ", ".join(f'"{name}"' for name in rest)
    verb = "INSERT OR REPLACE" if database.kind == "sqlite" else "INSERT"
    before = _rows(database)
    with pytest.raises(Exception, match=r"as the service wrote|same change"):
        run(database, f"{verb} INTO {table} (id, {columns}) SELECT {key}, {columns} FROM {table} LIMIT 1")
    assert _rows(database) == before


def test_an_account_changes_only_with_an_entry(database: Database) -> None:
    _ledger(database)
    changes = ("totals = '{}'", "state = 'closed'", "head_seq = 1", "head_seq = head_seq", "spending_sum = 'another'")
    taken_away = ("seal = NULL", "spending_sum = NULL")
    for change in (*changes, *taken_away, *(f"{column}, head_seq = head_seq + 1" for column in taken_away)):
        _refused(database, f"UPDATE accounts SET {change}")
    run(database, "UPDATE accounts SET releases = 7, head_seq = head_seq + 1")
    with database.read() as connection:
        assert connection.execute(text("SELECT DISTINCT releases FROM accounts")).scalar_one() == 7


def test_an_account_gets_another_seal_if_nothing_else_of_it_changes(database: Database) -> None:
    _ledger(database)
    for column in sorted(_MAY_CHANGE["accounts"] - {"seal", "head_seq"}):
        other = "'closed'" if column == "state" else "7" if column in _NUMBERS else "'{}'"
        _refused(database, f"UPDATE accounts SET seal = 'another', {column} = {other}")
    for table in ("accounts", "window_totals", "allotments", "partitions_drawn"):
        run(database, f"UPDATE {table} SET seal = 'another'")
        _refused(database, f"UPDATE {table} SET seal = NULL")


def test_a_row_without_a_seal_is_sealed_without_an_entry(database: Database) -> None:
    open_account(database)
    unseal(database)
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        account_of(database)
    run(database, "UPDATE accounts SET seal = 'another'")
    for change in ("head_seq = head_seq - 1", "seal = NULL"):
        _refused(database, f"UPDATE accounts SET spending_sum = 'one', {change}")
    run(database, "UPDATE accounts SET seal = 'a third', spending_sum = 'one'")
    _refused(database, "UPDATE accounts SET seal = 'a fourth', spending_sum = 'another'")


@pytest.mark.parametrize("state", ["proposed", "reserved", "committed", "voided", "expired", "draft", ""])
def test_a_release_goes_only_forward(database: Database, state: str) -> None:
    _ledger(database)
    _refused(database, f"UPDATE releases SET state = '{state}' WHERE state = 'committed'")
    statement = f"UPDATE releases SET state = '{state}' WHERE state = 'reserved'"
    if state not in ("committed", "voided", "expired"):
        _refused(database, statement)
        return
    run(database, statement)
    for other in {"reserved", "committed", "voided", "expired"} - {"committed"}:
        _refused(database, f"UPDATE releases SET state = '{other}'")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE spending SET occurrences = 0, reserved = 0",
        "UPDATE spending SET occurrences = -1",
        "UPDATE spending SET reserved = -1",
        "UPDATE accounts SET head_seq = head_seq + 1, releases = -1",
        "UPDATE accounts SET head_seq = head_seq + 1, state = 'shut'",
        "INSERT INTO holds SELECT 'nobody', account_id, price, expires_at, seal, caps, periods FROM holds",
        "INSERT INTO holds SELECT release_id, 99, price, expires_at, seal, caps, periods FROM holds",
        "INSERT INTO holds SELECT release_id, account_id, price, expires_at, seal, caps, periods FROM holds",
        "INSERT INTO releases SELECT 'new', account_id, 99, name, plan, tags, delta, 'reserved', price, accountant,"
        " created_at, NULL, seal, periods FROM releases LIMIT 1",
    ],
)
def test_what_cannot_be_is_not_stored(database: Database, statement: str) -> None:
    _ledger(database)
    with pytest.raises(Exception, match=r"refused|as the service wrote|same change"):
        run(database, statement)
    assert len(entries_of(database)) == 7


@pytest.mark.parametrize("seq", [0, -1])
def test_no_entry_and_no_row_of_one_has_a_number_below_one(database: Database, seq: int) -> None:
    _ledger(database)
    for table in ("journal", "installation_journal", "releases", "release_tags", "draws", "descriptions"):
        names = [column.name for column in Base.metadata.tables[table].columns]
        if table == "installation_journal":
            _refused(database, f"INSERT INTO {table} VALUES ({seq}, 'k', 'b', 'h', 's')")
            run(database, f"INSERT INTO {table} VALUES (1, 'k', 'b', 'h', 's')")
            continue
        other = {"id": "'new'", "seq": str(seq), "partition": "'another'"}
        values = ", ".join(other.get(name, f'"{name}"') for name in names)
        columns = ", ".join(f'"{name}"' for name in names)
        _refused(database, f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table} LIMIT 1")
        other["seq"] = "99"
        values = ", ".join(other.get(name, f'"{name}"') for name in names)
        run(database, f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table} LIMIT 1")


def test_only_a_draw_without_a_seal_is_sealed(database: Database) -> None:
    _ledger(database)
    for seal in ("'another'", "NULL"):
        _refused(database, f"UPDATE draws SET seal = {seal}")
    unseal(database)
    _refused(database, "UPDATE draws SET seal = 'another', noisy = 'x'")
    run(database, "UPDATE draws SET seal = 'another'")
    _refused(database, "UPDATE draws SET seal = 'a third'")


_KEPT = (*_MAY_CHANGE, "installation_journal")
_KEYED = ("accounts", "installation_journal")  # without rowids
_ROWIDS = {
    "stated": "VALUES ({rowid}, {values})",
    "as text": "VALUES ('{rowid}', {values})",
    "selected": "SELECT {rowid}, {values}",
    "stated only for the row": "VALUES (only_for_the_row({rowid}), {values})",
}
_OTHER_KEY = {
    "id": "'new'",
    "seq": "99",
    "name": "'another'",
    "partition": "'another'",
    "repetition": "99",
    "turn": "99",
    "draw_id": "'new'",
    "place": "99",
    "child_id": "99",
    "tag": "'another'",
}
# Triggers of the attacker's own connection, which come before the tables' own.
_OWN = {
    "none": "",
    "before it, more of the same": "BEFORE INSERT ON main.{table} BEGIN {insert}; END",
    "after it, more of the same": "AFTER INSERT ON main.{table} BEGIN {insert}; END",
    "after it, no other trigger": "AFTER INSERT ON main.{table} BEGIN SELECT RAISE(IGNORE); END",
    "after it, an end without a return": "AFTER INSERT ON main.{table} BEGIN SELECT RAISE(FAIL, 'enough'); END",
    "before it, no other trigger": "BEFORE INSERT ON main.{table} BEGIN SELECT RAISE(IGNORE); END",
    "after a change, no other trigger": "AFTER UPDATE ON main.{table} BEGIN SELECT RAISE(IGNORE); END",
    "before a change, no other trigger": "BEFORE UPDATE ON main.{table} BEGIN SELECT RAISE(IGNORE); END",
    "before a deletion, no other trigger": "BEFORE DELETE ON main.{table} BEGIN SELECT RAISE(IGNORE); END",
}


def _sqlite(database_url: str) -> sqlite3.Connection:
    """A connection of somebody else's, who computes a rowid otherwise for a trigger than for the row, once."""
    connection = sqlite3.connect(str(make_url(database_url).database), isolation_level=None)
    computed: list[int] = []

    def only_for_the_row(rowid: int) -> int | None:
        computed.append(rowid)
        return None if len(computed) % 2 else rowid

    connection.create_function("only_for_the_row", 1, only_for_the_row)
    return connection


def _filled(database: Database) -> None:
    for name in ("people", "others"):
        _ledger(database, name)
    for seq in (1, 2):
        run(database, f"INSERT INTO installation_journal VALUES ({seq}, 'k', 'b', 'h', 's')")


def _attacks(table: str, key: str, value: object) -> list[str]:
    """Statements that would delete a row of a table if the value of a key, or a rowid, were another's for the row."""
    names = [column.name for column in Base.metadata.tables[table].columns if column.name != key]
    values = ", ".join(_OTHER_KEY.get(name, f'"{name}"') for name in names)
    columns = ", ".join(f'"{name}"' for name in names)
    literal = f"'{value}'" if isinstance(value, str) else str(value)
    stated = [source.format(rowid=literal, values="{values}") for source in _ROWIDS.values()]
    one = ", ".join(f"(SELECT {_OTHER_KEY.get(name, f'{chr(34)}{name}{chr(34)}')} FROM {table})" for name in names)
    inserts = [
        f"INSERT OR REPLACE INTO {table} ({key}, {columns}) "
        + (f"{source.format(values=values)} FROM {table}" if source.startswith("SELECT") else source.format(values=one))
        for source in stated
    ]
    updates = [f"UPDATE OR REPLACE {table} SET {key} = {new}" for new in (literal, f"only_for_the_row({literal})")]
    return [*inserts, *updates, f"DELETE FROM {table} WHERE {key} = {literal}"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("own", _OWN)
def test_no_row_takes_the_place_of_another(database: Database, database_url: str, own: str) -> None:
    """REPLACE deletes the row that has the rowid or the key, and no trigger of deletion fires.

    The attack of a connection with triggers of its own: they can end a statement before the tables' own triggers after
    it.
    """
    _filled(database)
    with contextlib.closing(_sqlite(database_url)) as attacker:
        for table in _KEPT:
            query = f"SELECT * FROM {table}"
            before = set(attacker.execute(query))
            assert len(before) > 1
            first = next(iter(Base.metadata.tables[table].primary_key)).name
            taken = [(first, key) for (key,) in attacker.execute(f"SELECT {first} FROM {table}").fetchall()]
            rowids = [(name, number) for name in sorted(UNSTATED) for number in (1, len(before), 2**63 - 1)]
            for key, value in (*rowids, *taken):
                for attack in _attacks(table, key, value):
                    if _OWN[own]:
                        nested = attack if attack.startswith("INSERT") else f"DELETE FROM {table}"
                        trigger = _OWN[own].format(table=table, insert=nested)
                        with contextlib.suppress(sqlite3.OperationalError):  # it names a column that there is not
                            attacker.execute(f"CREATE TEMP TRIGGER own {trigger}")
                    attacker.execute("BEGIN")
                    for _ in range(2):  # the function starts with either value
                        with contextlib.suppress(sqlite3.Error):
                            attacker.execute(attack)
                        attacker.execute("SELECT only_for_the_row(1)")
                        assert before <= set(attacker.execute(query)), attack
                    attacker.execute("ROLLBACK")
                    attacker.execute("DROP TRIGGER IF EXISTS temp.own")


def _without_triggers(action: int, *about: str | None) -> int:
    """An authorizer that leaves out what triggers do."""
    return sqlite3.SQLITE_IGNORE if action == sqlite3.SQLITE_SELECT and about[-1] else sqlite3.SQLITE_OK


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_triggers_of_sqlite_cannot_stop_permits_no_draw(database: Database, database_url: str) -> None:
    """A setting of the writer's connection leaves triggers out, so whoever writes the file is its owner."""
    open_account(database)
    plan = {"type": "geometric", "epsilon": "0.01", "name": "a", "partitions": 2}
    (release,) = charge(database, plan)
    draw(database, release.id, plan, partition="one")
    with contextlib.closing(_sqlite(database_url)) as attacker:
        schema, put_back = "PRAGMA schema_version", "UPDATE partitions_drawn SET drawn = ?, seal = ?"
        earlier = attacker.execute("SELECT drawn, seal FROM partitions_drawn").fetchone()
        version = attacker.execute(schema).fetchone()
        draw(database, release.id, plan, partition="two")
        with pytest.raises(sqlite3.IntegrityError, match="stays as it is"):
            attacker.execute(put_back, earlier)
        attacker.set_authorizer(_without_triggers)
        assert attacker.execute(put_back, earlier).rowcount == 1
        attacker.set_authorizer(None)
        assert attacker.execute(schema).fetchone() == version
    with pytest.raises(Altered, match="partitions drawn"):
        draw(database, release.id, plan, partition="three")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", sorted(UNSTATED))
def test_nobody_states_a_rowid(database: Database, database_url: str, column: str) -> None:
    _filled(database)
    with contextlib.closing(_sqlite(database_url)) as attacker:
        for table in _KEPT:
            reason = "no such column|has no column" if table in _KEYED else "generated column"
            for statement in (
                f'INSERT INTO {table} ("{column.upper()}") VALUES (7)',
                f"UPDATE {table} SET {column} = {column} + 1",
            ):
                with pytest.raises(sqlite3.OperationalError, match=reason):
                    attacker.execute(statement)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("taken", [2**63 - 1, 2**53, 2**53 - 1, 9, -1])
def test_an_account_is_opened_beside_a_row_with_any_number(database: Database, taken: int) -> None:
    open_account(database)
    names = [column.name for column in Base.metadata.tables["accounts"].columns if column.name not in ("id", "name")]
    columns = ", ".join(names)
    run(database, f"INSERT INTO accounts (id, name, {columns}) SELECT {taken}, 'x', {columns} FROM accounts")
    given = [1, taken]
    for number, parent in ((2, None), (3, "people"), (4, "others-3")):
        open_account(database, f"others-{number}", parent=parent)
        given.append(account_of(database, f"others-{number}").id)
    assert len({*given}) == 5
    assert given[4] > given[3] > given[0], "a parent's id is below its children's"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_row_with_the_largest_rowid_leaves_room_for_others(database: Database, database_url: str) -> None:
    """The attack of earlier versions: after such a row, nothing could be charged."""
    open_account(database)
    downgrade(database, "0026")
    with as_owner(database_url) as owner:
        names = "rowid, account_id, seq, kind, body, hash"
        owner.execute(text(f"INSERT INTO journal ({names}) VALUES ({2**63 - 1}, 1, 900, 'x', '', '')"))
    migrate(database)
    charge(database, {"type": "geometric", "epsilon": "0.01", "name": "a"})
