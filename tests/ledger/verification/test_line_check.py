"""Journals of a line of accounts: each may be sound by itself while they disagree about a release."""

import contextlib
import io
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from service.ledger.installation.signing import Signer
from service.ledger.storage.database import Database, open_database
from service.ledger.verification.export_reader import BadExport, Reader
from service.ledger.verification.verify import verify
from tests.ledger.charging import account_of, charge, commit, open_account, reserve, void
from tests.ledger.ledgers import exported
from tests.ledger.writing import unprotected

_PLAN = {"type": "geometric", "epsilon": "0.01", "name": "a"}
_OF_ACCOUNT = {"accounts": "id", "journal": "account_id", "spending": "account_id", "holds": "account_id"}


def _kept(database: Database, name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of an account, as somebody who reads the database may keep them."""
    of = {"account": account_of(database, name).id}
    with database.read() as connection:
        return {
            table: [
                dict(row)
                for row in connection.execute(text(f"SELECT * FROM {table} WHERE {column} = :account"), of).mappings()
            ]
            for table, column in _OF_ACCOUNT.items()
        }


def _put_back(database: Database, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Put the rows of an account back, with the seals that they had."""
    (account,) = rows["accounts"]
    changes = ", ".join(f"{name} = :{name}" for name in account if name != "id")
    unprotected(database, "accounts", f"UPDATE accounts SET {changes} WHERE id = :id", **account)
    for table in ("journal", "spending", "holds"):
        last = " AND seq > :last" if table == "journal" else ""
        gone = f"DELETE FROM {table} WHERE account_id = :account{last}"
        values = {"account": account["id"]} | ({"last": account["head_seq"]} if last else {})
        unprotected(database, table, gone, **values)
        for row in rows[table] if table != "journal" else []:
            names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
            unprotected(database, table, f"INSERT INTO {table} ({names}) VALUES ({marks})", **row)


@pytest.fixture
def line(database: Database) -> Database:
    for name, parent in (("top", None), ("middle", "top"), ("kid", "middle")):
        open_account(database, name, parent=parent)
    return database


def _faults(database: Database, *names: str, one_of_all: bool = False) -> list[str]:
    with database.read() as connection:
        found = [verify(connection, name, one_of_all=one_of_all).first_bad for name in names]
    return [bad.reason for bad in found if bad is not None]


def _read(database: Database, signer: Signer) -> None:
    for _ in Reader(io.BytesIO(exported(database, signer)), signer.public_key).entries():
        pass


def test_journals_of_a_line_agree(line: Database, signer: Signer) -> None:
    commit(line, reserve(line, _PLAN, name="kid")[0], name="kid")
    void(line, reserve(line, _PLAN, name="kid")[0], name="kid")
    reserve(line, _PLAN, name="kid")
    charge(line, _PLAN, name="middle")
    charge(line, _PLAN, name="top")
    open_account(line, "lot", parent="top", funding="allotted", definition="zcdp", rho="0.1")
    charge(line, _PLAN, name="lot")
    for one_of_all in (False, True):
        assert _faults(line, "top", "middle", "kid", "lot", one_of_all=one_of_all) == []
    _read(line, signer)


@pytest.mark.parametrize("earlier", [("top",), ("top", "middle")])
def test_an_account_that_was_put_back_beside_the_others_of_its_line_is_found(
    line: Database, signer: Signer, earlier: tuple[str, ...]
) -> None:
    """One release more and one fewer: the numbers of releases agree, and every journal by itself is sound."""
    held = reserve(line, _PLAN, name="kid")[0]
    rows = [_kept(line, name) for name in earlier]
    void(line, held, name="kid")
    charge(line, {**_PLAN, "epsilon": "0.5"}, name="kid")
    for kept in rows:
        _put_back(line, kept)
    with contextlib.closing(open_database(line.url)) as another:  # a process that knows no later entries
        another.secret = line.secret
        assert _faults(another, "top", "middle", "kid") == ["the account above it lacks an entry about a release"]
        together = _faults(another, "top", "middle", "kid", one_of_all=True)
        assert together == ["an account under it has an entry about a release that is missing here"]
        with pytest.raises(BadExport, match="are not those of it and the accounts under it"):
            _read(another, signer)


def test_an_account_that_was_put_back_under_the_others_of_its_line_is_found(line: Database) -> None:
    held = reserve(line, _PLAN, name="kid")[0]
    kept = _kept(line, "kid")
    void(line, held, name="kid")
    charge(line, _PLAN, name="kid")
    _put_back(line, kept)
    with contextlib.closing(open_database(line.url)) as another:
        another.secret = line.secret
        missing = "it has an entry about a release that the account under it lacks"
        assert _faults(another, "middle", one_of_all=True) == [missing]


def test_entries_are_compared_in_a_few_passes(line: Database) -> None:
    """No index finds the entries of a release: what searches for those of each is quadratic."""
    charge(line, _PLAN, name="kid")
    plans: list[str] = []

    def explain(connection: Any, _: object, statement: str, parameters: Any, *__: object) -> None:
        if " EXCEPT " in statement and not statement.startswith("EXPLAIN"):
            prefix = "EXPLAIN QUERY PLAN" if line.kind == "sqlite" else "EXPLAIN"
            rows = connection.exec_driver_sql(f"{prefix} {statement}", parameters)
            plans.extend(str(row[-1]) for row in rows)

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        for one_of_all in (False, True):
            assert _faults(line, "top", "middle", "kid", one_of_all=one_of_all) == []
    finally:
        event.remove(Engine, "before_cursor_execute", explain)
    assert plans
    assert not [plan for plan in plans if "CORRELATED" in plan or "SubPlan" in plan]
