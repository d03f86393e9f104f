"""Verification: a sound ledger is valid, and whatever is changed in it is found, in every column of every table."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import IntegrityError

from service.errors import NotFound
from service.ledger.accounts import account_rows, budgets
from service.ledger.journal import canonical_json, journal
from service.ledger.journal.chains import BadEntry
from service.ledger.journal.journal import Head
from service.ledger.releases import release_rows
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.tables import Base
from service.ledger.verification import chain_check
from service.ledger.verification.row_check import RowVerifier
from service.ledger.verification.verify import Verdict, verify
from service.privacy.accounting import pricing
from service.privacy.accounting.pricing import ACCOUNTANT
from service.privacy.accounting.totals import LossSum
from service.privacy.numerics.keyed import KeptResults
from tests.ledger.charging import (
    SECRET,
    account_of,
    asking,
    charge,
    commit,
    entries_of,
    open_account,
    reserve,
)
from tests.ledger.ledgers import NAMES, A, B, Clock, draw_what_is_held, everything

# Nothing that an account's journal says, or, as figures that are kept, that anything rests on.
_NOT_OF_AN_ACCOUNT = {
    *("installation", "installation_journal", "older_rows", "api_keys", "jobs", "stored_answers", "known_costs"),
    *("scenarios", "webhooks", "deliveries", "delivery_tries", "budgets_below", "followed_journals"),
}
_TABLES = [table for table in Base.metadata.sorted_tables if table.name not in _NOT_OF_AN_ACCOUNT]
_PRESENT = ("window_totals", "allotments")  # what follows from the last entry, whichever it names
_COLUMNS = [(table.name, column.name) for table in _TABLES for column in table.columns]


def _verdicts(database: Database) -> dict[str, Verdict]:
    with database.read() as connection:
        names = connection.execute(text("SELECT name FROM accounts")).scalars().all()
        return {name: verify(connection, name) for name in names}


def _first_bad(database: Database) -> dict[str, BadEntry]:
    return {name: verdict.first_bad for name, verdict in _verdicts(database).items() if verdict.first_bad}


def test_a_ledger_with_everything_in_it_is_valid(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(database, Clock(monkeypatch))
    with database.read() as connection:
        for table in _TABLES:
            assert connection.execute(text(f"SELECT count(*) FROM {table.name}")).scalar_one() > 0, table.name
        kinds = set(connection.execute(text("SELECT kind FROM journal")).scalars())
    assert kinds == set(journal.Kind.__args__) - {"repriced", "caps_changed"}  # type: ignore[attr-defined]
    assert _verdicts(database) == {name: Verdict(len(entries_of(database, name))) for name in NAMES}


def test_long_plans_are_priced_once_however_often_their_journal_is_verified(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database)
    for first in (1000, 2000):
        parts = [{"type": "gaussian", "rho": f"0.0000{first + k}"} for k in range(200)]
        charge(database, {"type": "sequence", "parts": parts})
    price = Mock(wraps=pricing.price)
    monkeypatch.setattr(chain_check, "price", price)
    monkeypatch.setattr(chain_check, "_long_prices", KeptResults(4))
    for _ in range(3):
        assert _verdicts(database) == {"people": Verdict(3)}
    assert price.call_count == 2


Rows = dict[str, list[dict[str, Any]]]


@contextlib.contextmanager
def _unprotected(database_url: str) -> Iterator[Connection]:
    """A connection of somebody who writes the database as he likes: no triggers, no constraints across tables."""
    engine = create_engine(make_url(database_url).set(drivername=_drivers[make_url(database_url).get_backend_name()]))
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            triggers = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
            for trigger in triggers:
                connection.execute(text(f"DROP TRIGGER {trigger}"))
        else:
            connection.execute(text("SET session_replication_role = replica"))
        connection.commit()
        connection.info["database"] = SimpleNamespace(secret=SECRET)
        yield connection
    engine.dispose()


_drivers = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}


def _rows(connection: Connection) -> Rows:
    return {
        table.name: [dict(row._mapping) for row in connection.execute(table.select().order_by(*table.primary_key))]
        for table in _TABLES
    }


def _some(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first, the last, and one between."""
    return [rows[at] for at in sorted({0, len(rows) // 2, len(rows) - 1})]


def _another(column: str, row: dict[str, Any]) -> Any:
    """Another value that the column's own constraints allow."""
    value = row[column]
    match column, value:
        case "neighbouring", _:
            return "replace_one"
        case "state", "open" | "closed":
            return "open" if value == "closed" else "closed"
        case "state", _:
            return "committed" if value != "committed" else "voided"
        case "parent_id", _:
            return 1 if value is None else None
        case "mechanism", _:
            return value + "x"
        case "most", None:
            return 1000
        case "drawn", _:
            return value + 1 if row["most"] is None or value < row["most"] else value - 1
        case _, None:
            return "2031-01-01T00:00:00.000000Z"
        case _, int():
            return value + 1000
        case _, bytes():
            return value[:-1] + bytes([value[-1] ^ 1])
    digit = next((at for at, character in enumerate(value) if character.isascii() and character.isdigit()), None)
    return value + "x" if digit is None else value[:digit] + str((int(value[digit]) + 1) % 10) + value[digit + 1 :]


def _expected(table: str, column: str, row: dict[str, Any], rows: Rows) -> tuple[str, int]:
    """The account that must be found bad, and at which entry."""
    accounts = {account["id"]: account for account in rows["accounts"]}
    if table == "accounts":
        fixed = {"id", "name", "unit", "neighbouring", "description", "admission", "created_at", "parent_id"}
        fixed |= {"periods", "funding"}
        seq = 1 if column in fixed else row["head_seq"] + (column == "head_seq")
        return row["name"], seq
    if table in ("branches_taken", "tabulations"):
        (draw,) = (draw for draw in rows["draws"] if draw["id"] == row["draw_id"])
        return accounts[draw["account_id"]]["name"], draw["seq"]
    if table == "partitions_drawn":
        (release,) = (release for release in rows["releases"] if release["id"] == row["release_id"])
        account, name = accounts[release["account_id"]], row["mechanism"]
        levels = {"x/t", "x/1"}  # which no draw of a tabulation names
        draws = (draw for draw in rows["draws"] if draw["release_id"] == release["id"] and draw["partition"])
        seqs = [draw["seq"] for draw in draws if draw["mechanism"] == name or name in levels]
        return account["name"], min(seqs)
    account = accounts[row["account_id"]]
    return account["name"], row["seq"] if "seq" in row and table not in _PRESENT else account["head_seq"]


def _verdicts_in(connection: Connection) -> dict[str, BadEntry | None]:
    names = connection.execute(text("SELECT name FROM accounts ORDER BY id")).scalars().all()
    return {name: verify(connection, name).first_bad for name in names}


def _where(table: str, row: dict[str, Any]) -> str:
    return " AND ".join(f'"{column.name}" = :old_{column.name}' for column in Base.metadata.tables[table].primary_key)


def _old(row: dict[str, Any]) -> dict[str, Any]:
    return {f"old_{column}": value for column, value in row.items()}


def test_whatever_is_changed_is_found(database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column of every table, so that a new column is in it by itself."""
    everything(database, Clock(monkeypatch))
    with _unprotected(database_url) as connection:
        rows = _rows(connection)
        for table, column in _COLUMNS:
            if (table, column) == ("draws", "noisy_removed_at"):
                continue  # a check compares it with the noisy counts; test_retention has it
            some = _some(rows[table])
            for row in some if connection.dialect.name == "sqlite" else some[-1:]:  # by the same code, more slowly
                if (table, column, row.get("id")) == ("accounts", "parent_id", 1):
                    continue  # no account is before it that it could be under
                new = _another(column, row)
                statement = f'UPDATE {table} SET "{column}" = :new WHERE {_where(table, row)}'
                assert connection.execute(text(statement), {"new": new, **_old(row)}).rowcount == 1
                name, seq = _expected(table, column, row, rows)
                found = verify(connection, new if (table, column) == ("accounts", "name") else name).first_bad
                assert found is not None, (table, column, row, new)
                assert found.seq == seq, (table, column, row, new, found)
                connection.rollback()
        assert set(_verdicts_in(connection).values()) == {None}


def test_a_row_that_is_gone_and_one_that_was_never_written_are_found(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(database, Clock(monkeypatch))
    with _unprotected(database_url) as connection:
        rows = _rows(connection)
        for table in _TABLES:
            for row in _some(rows[table.name]):
                if table.name == "accounts":
                    continue  # an account that is gone is nobody's to verify; If-Ledger-Includes is for that
                connection.execute(text(f"DELETE FROM {table.name} WHERE {_where(table.name, row)}"), _old(row))
                name, seq = _expected(table.name, "", row, rows)
                found = verify(connection, name).first_bad
                assert found is not None, (table.name, row)
                assert found.seq == seq, (table.name, row, found)
                connection.rollback()
            keys = [column.name for column in table.primary_key if column.name not in ("account_id", "release_id")]
            row = dict(rows[table.name][-1])
            row |= {column: _another(column, row) for column in keys or ["release_id"]}
            row |= {"name": "somebody"} if table.name == "accounts" else {}
            row |= {"seq": 10**6} if "seq" in row else {}
            row |= {"partition": "a fresh one"} if "partition" in row else {}
            connection.execute(table.insert(), row)
            assert any(found is not None for found in _verdicts_in(connection).values()), (table.name, row)
            connection.rollback()


def _chain_again(
    connection: Connection, name: str, change: Callable[[dict[str, Any]], object], *, sealed: bool = True
) -> None:
    """Rewrite the chain, as an attacker does who writes the database and knows the secret and the entries' hash."""
    account_id = connection.execute(text("SELECT id FROM accounts WHERE name = :name"), {"name": name}).scalar_one()
    previous, seq = journal.BEFORE_FIRST.hash, 0
    while page := journal.entries(connection, account_id, seq, 100, until=10**6):
        for entry in page:
            said = json.loads(entry.body)
            change(said)
            body, seq = canonical_json.canonical(said), entry.seq
            previous = journal.entry_hash(previous, body)
            new = {"body": body, "hash": previous, "account": account_id, "seq": seq}
            statement = "UPDATE journal SET body = :body, hash = :hash WHERE account_id = :account AND seq = :seq"
            connection.execute(text(statement), new)
    connection.execute(
        text("UPDATE accounts SET head_hash = :hash WHERE name = :name"), {"hash": previous, "name": name}
    )
    if sealed:
        for table in ("accounts", "releases"):
            connection.execute(text(f"UPDATE {table} SET seal = NULL"))
        account_rows.seal_old(connection, SECRET, 0, 100)
        release_rows.seal_old(connection, SECRET, "", 100)


def test_a_chain_that_was_made_again_is_found_by_its_prices_or_by_a_head_that_was_kept(
    database_url: str, database: Database
) -> None:
    open_account(database, definition="pure", epsilon="3")
    charge(database, A, A | {"epsilon": "1/9"})
    kept = account_of(database).head
    half = {"epsilon": "1/14", "rho": "1/392"}

    def cheaper(said: dict[str, Any]) -> None:
        if said["seq"] == 2:
            said["content"]["price"] |= {"epsilon": half["epsilon"]}

    def by_another(said: dict[str, Any]) -> None:
        cheaper(said)
        if said["seq"] == 2:
            said["content"]["accountant"] = "0"

    with _unprotected(database_url) as connection:
        totals = account_of(database).totals
        less = budgets.write_totals(replace(totals, epsilon=LossSum(totals.epsilon.finite - Fraction(1, 14))))
        price = connection.execute(text("SELECT price FROM releases WHERE seq = 2")).scalar_one()
        price = json.dumps(json.loads(price) | {"epsilon": half["epsilon"]})
        connection.execute(text("UPDATE releases SET price = :price WHERE seq = 2"), {"price": price})
        connection.execute(text("UPDATE accounts SET totals = :totals"), {"totals": less})
        _chain_again(connection, "people", cheaper)
        assert verify(connection, "people").first_bad == BadEntry(2, "the price is not that of the plan")
        _chain_again(connection, "people", by_another, sealed=False)
        connection.execute(text("UPDATE releases SET accountant = '0' WHERE seq = 2"))
        unsealed = BadEntry(2, "the release's row was not written by the service")
        assert verify(connection, "people").first_bad == unsealed
        _chain_again(connection, "people", by_another)
        assert verify(connection, "people").valid, "an older accountant's price cannot be known"
        found = verify(connection, "people", [kept])
        assert found.first_bad == BadEntry(3, "the entry is not the one that was kept")


@pytest.mark.parametrize("voided", [False, True])
def test_a_draw_of_what_was_not_committed_is_found_although_all_else_agrees(
    database: Database, monkeypatch: pytest.MonkeyPatch, *, voided: bool
) -> None:
    """A faulty server would write this: noise that was published, and a budget that has its charge back."""
    draw_what_is_held(database, monkeypatch, voided=voided)
    reason = "the draw belongs to no committed release of the account"
    early = "the release is drawn from before it is committed"
    assert _first_bad(database) == {"people": BadEntry(4, reason) if voided else BadEntry(3, early)}


@pytest.mark.parametrize(("table", "column"), _COLUMNS)
def test_values_of_another_type_are_bad_and_no_failure(everything_url: str, table: str, column: str) -> None:
    """SQLite takes bytes in a column of text, and text in one of numbers."""
    with _unprotected(everything_url) as connection:
        if column == "name" and table == "accounts":
            return  # it could not even be asked for
        try:
            keys = ", ".join(f'"{key.name}"' for key in Base.metadata.tables[table].primary_key)
            first = f"({keys}) IN (SELECT {keys} FROM {table} NOT INDEXED LIMIT 1)"
            connection.execute(text(f"UPDATE {table} SET \"{column}\" = x'c328' WHERE {first}"))
        except IntegrityError:
            return  # a constraint of the column itself is not to be got round
        assert any(found is not None for found in _verdicts_in(connection).values())
        connection.rollback()


@pytest.fixture(scope="module")
def everything_url(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("everything") / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    database = open_database(f"sqlite:///{path}")
    database.secret = SECRET
    with pytest.MonkeyPatch.context() as monkeypatch:
        everything(database, Clock(monkeypatch))
    database.close()
    return f"sqlite:///{path}"


def test_what_an_account_says_of_a_release_is_what_those_above_it_say(database_url: str, database: Database) -> None:
    open_account(database, "agency")
    open_account(database, "product", parent="agency")
    charge(database, B, name="product")
    (held,) = reserve(database, B, name="product")
    commit(database, held, "product")

    def rename(said: dict[str, Any]) -> None:
        if said["seq"] == 3:
            said["content"]["name"] = "another"

    with _unprotected(database_url) as connection:
        _chain_again(connection, "product", rename)
        connection.execute(text("UPDATE releases SET name = 'another', seal = NULL WHERE seq = 3"))
        release_rows.seal_old(connection, SECRET, "", 100)
        assert _verdicts_in(connection) == {
            "agency": BadEntry(3, "the release's name, delta or time is not that of its entry"),
            "product": None,
        }
        connection.rollback()
        _chain_again(connection, "agency", lambda said: said["seq"] == 2 and said["content"]["origin"].update(seq=1))
        reason = "the release was not registered where the entry states"
        assert _verdicts_in(connection) == {"agency": BadEntry(2, reason), "product": None}


@pytest.mark.parametrize(
    "content",
    [
        {"price": {"epsilon": "abc", "rho": "1", "delta": "0", "linear": "0", "quanta": []}},
        {"price": {"epsilon": "1e999999999", "rho": "1", "delta": "0", "linear": "0", "quanta": []}},
        {"price": {"epsilon": "-1", "rho": "1", "delta": "0", "linear": "0", "quanta": []}},
        {"price": {"epsilon": "1/0", "rho": "1", "delta": "0", "linear": "0", "quanta": []}},
        {"price": {"epsilon": 1, "rho": "1", "delta": "0", "linear": "0", "quanta": []}},
        {"price": {"epsilon": "1", "rho": "1", "delta": "0", "linear": "0", "quanta": ["1/2"]}},
        {"price": {}}, {"price": None}, {"price": []}, {"plan": {}}, {"plan": None}, {"plan": {"type": "geometric"}},
        {"plan": {"type": "geometric", "epsilon": []}}, {"tags": [1, "a"]}, {"tags": None}, {"delta": None},
        {"name": 1},
    ],
)  # fmt: skip
@pytest.mark.parametrize("accountant", ["0", ACCOUNTANT])
def test_entries_that_nobody_can_have_written_are_bad_and_no_failure(
    embedded_url: str, content: dict[str, Any], accountant: str
) -> None:
    database = open_database(embedded_url)
    database.secret = SECRET
    open_account(database, definition="pure", epsilon="3")
    charge(database, A)

    def change(said: dict[str, Any]) -> None:
        if said["seq"] == 2:
            said["content"] |= content | {"accountant": accountant}

    with _unprotected(embedded_url) as connection:
        _chain_again(connection, "people", change)
        found = verify(connection, "people").first_bad
        assert found is not None
        assert found.seq == 2
    database.close()


@pytest.fixture
def embedded_url(_sqlite_template: Path, tmp_path: Path) -> str:
    shutil.copyfile(_sqlite_template, tmp_path / "ledger.db")
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def test_a_head_that_was_kept_must_be_in_the_chain(database: Database) -> None:
    open_account(database)
    charge(database, {"type": "gaussian", "rho": "0.1"})
    heads = [Head(entry.seq, entry.hash) for entry in entries_of(database)]
    with database.read() as connection:
        for head in heads:
            assert verify(connection, "people", [head]) == Verdict(2)
        assert verify(connection, "people", [Head(1, heads[1].hash)]).first_bad == BadEntry(
            1, "the entry is not the one that was kept"
        )
        assert verify(connection, "people", [Head(3, heads[1].hash)]) == Verdict(2, BadEntry(3, "the entry is missing"))
        with pytest.raises(NotFound):
            verify(connection, "nobody")


@pytest.mark.parametrize("actor", ['a "quoted" name', "Ünïcode", "a\\b", '","content":{"accountant":"1"'])
@pytest.mark.parametrize("named", [True, False])
def test_names_do_not_confuse_what_reads_entries_without_parsing_them(
    database: Database, actor: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database)
    request = asking(actor, key_id=actor if named else None)
    charge(database, A, request=request)
    parsed: list[str] = []
    monkeypatch.setattr(RowVerifier, "_check", lambda _, entry, *__: parsed.append(entry.kind))
    assert len(entries_of(database)) == 2
    assert parsed == ["account_opened"]


def test_charges_go_on_while_a_ledger_is_verified(database: Database) -> None:
    open_account(database)
    charge(database, A | {"epsilon": "1/100"})
    with database.read() as connection:
        connection.execute(text("SELECT 1 FROM accounts")).all()  # on PostgreSQL the snapshot is taken here
        charge(database, A | {"epsilon": "1/100"})
        assert verify(connection, "people") == Verdict(2)
    assert len(entries_of(database)) == 3
