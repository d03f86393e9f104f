"""Data of a ledger of an older version survive the migrations up and down, to the last bit."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import inspect, text

from service.errors import Altered, BudgetExceeded, Conflict, StartupRefused
from service.ledger.accounts.approvers import Approvers
from service.ledger.accounts.budgets import read_budget
from service.ledger.releases import admission
from service.ledger.spending import spending
from service.ledger.storage.database import Database
from service.ledger.storage.migrate import downgrade, is_migrated, migrate
from tests.ledger.charging import (
    BOB,
    account_of,
    approve,
    change_account,
    charge,
    commit,
    draw,
    entries_of,
    open_account,
    reserve,
    seal,
    unseal,
    void,
)
from tests.ledger.ledgers import describe

_PLAN = {"type": "choice", "parts": [{"type": "geometric", "epsilon": "0.01", "name": "a", "tags": ["t"]}]}

# The tables of the first version, parents first, as it declared them.
_OLD = {
    "accounts": "id name unit neighbouring description budget admission totals state created_at head_seq head_hash",
    "releases": "id account_id seq name plan tags delta state price accountant created_at",
    "release_tags": "account_id tag seq",
    "spending": "account_id digest subplan occurrences",
    "journal": "account_id seq kind release_id body hash",
    "draws": "id release_id mechanism partition repetition account_id seq size noisy noisy_hash created_at",
    "branches_taken": "release_id node partition turn branch draw_id",
}


def _rows(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the old tables, in their columns."""
    found = {}
    with database.read() as connection:
        for table, columns in _OLD.items():
            query = f"SELECT {', '.join(columns.split())} FROM {table}"
            found[table] = sorted((dict(row._mapping) for row in connection.execute(text(query))), key=str)
    return found


def _insert(database: Database, rows: dict[str, list[dict[str, Any]]]) -> None:
    def work(connection: Any) -> None:
        for table, columns in _OLD.items():
            names = columns.split()
            statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
            connection.execute(text(statement), rows[table])

    database.write(work, is_committed=lambda *_: False)


def _columns(database: Database) -> dict[str, list[str]]:
    with database.read() as connection:
        return {table: [column["name"] for column in inspect(connection).get_columns(table)] for table in _OLD}


def _old_ledger(database: Database) -> None:
    """Write a ledger with all that the first version could do."""
    for name, budget in (
        ("people", {"definition": "zcdp", "rho": "1", "delta": "1e-9"}),
        ("others", {"definition": "approximate", "epsilon": "3", "delta": "1e-6", "declared_delta": "1e-9"}),
    ):
        open_account(database, name, **budget)
        charge(database, _PLAN, {"type": "laplace", "epsilon": "1/3"}, name=name)
        charge(database, {"type": "declared", "epsilon": "1/7", "delta": "1e-10", "reference": "r"}, name=name)
    draw(database, charge(database, _PLAN)[0].id, _PLAN)
    for change in ("closed", "open", "closed"):
        change_account(database, "others", change)


def test_a_ledger_of_the_first_version_survives(database: Database) -> None:
    _old_ledger(database)
    rows = _rows(database)
    accounts = {name: account_of(database, name) for name in ("people", "others")}
    with database.read() as connection:
        spent = {name: spending.counts(connection, account) for name, account in accounts.items()}
    unseal(database)
    downgrade(database, "base")
    migrate(database)
    downgrade(database, "0001")
    assert _columns(database) == {table: columns.split() for table, columns in _OLD.items()}

    _insert(database, rows)
    migrate(database)
    assert _rows(database) == rows
    seal(database)
    for name, account in accounts.items():
        assert account_of(database, name) == account
        entries_of(database, name)
        with database.read() as connection:
            assert spending.counts(connection, account) == spent[name]
    unseal(database)
    downgrade(database, "0001")
    assert _rows(database) == rows
    migrate(database)
    seal(database)
    charge(database, _PLAN)
    commit(database, reserve(database, _PLAN)[0])


def _void_one(database: Database) -> None:
    void(database, reserve(database, _PLAN)[0])


def _commit_one(database: Database) -> None:
    commit(database, reserve(database, _PLAN)[0])


def _approve_one(database: Database) -> None:
    open_account(database, "strict", approval_above="0")
    approve(database, charge(database, _PLAN, name="strict")[0].id, "strict")


def _refuse_one(database: Database) -> None:
    with pytest.raises(BudgetExceeded):
        charge(database, {"type": "geometric", "epsilon": "9"})


_BEYOND: dict[str, Callable[[Database], object]] = {
    "accounts under others": lambda database: open_account(database, "child", parent="people"),
    "accounts that ask for approval": lambda database: open_account(database, "strict", approval_above="1"),
    "reservations": lambda database: reserve(database, _PLAN),
    "reservations, voided": _void_one,
    "reservations, committed": _commit_one,
    "approvals": _approve_one,
    "refusals": _refuse_one,
    "descriptions": lambda database: describe(database, "people", name="n"),
}


@pytest.mark.parametrize("beyond", _BEYOND)
def test_what_the_first_version_cannot_hold_is_not_taken_back(database: Database, beyond: str) -> None:
    open_account(database)
    charge(database, _PLAN)
    _BEYOND[beyond](database)
    unseal(database)
    rows, columns = _rows(database), _columns(database)
    for revision in ("0001", "base"):
        with pytest.raises(Conflict, match=beyond.split(",", maxsplit=1)[0]):
            downgrade(database, revision)
        assert is_migrated(database)
        assert (_rows(database), _columns(database)) == (rows, columns)
    seal(database)
    charge(database, _PLAN)
    entries_of(database)


_KEY = (
    "INSERT INTO api_keys (id, name, role, token_hash, created_at)"
    " VALUES ('k', 'oidc:ann', 'steward', 'h', '2030-01-01T00:00:00.000000Z')"
)
_REVOKE = "UPDATE api_keys SET revoked_at = '2030-01-02T00:00:00.000000Z'"


def test_a_key_under_an_issuers_name_is_revoked_before_the_migration(database: Database) -> None:
    def run(statement: str) -> None:
        database.write(lambda connection: connection.execute(text(statement)), is_committed=lambda *_: False)

    downgrade(database, "0004")
    run(_KEY)
    with pytest.raises(StartupRefused, match=r"oidc:.* got 1: revoke"):
        migrate(database)
    with database.read() as connection:
        assert not inspect(connection).has_table("descriptions")  # nothing of the migration before it either
    run(_REVOKE)
    migrate(database)
    for statement in ("UPDATE api_keys SET revoked_at = NULL", _KEY.replace("'k'", "'l'").replace("'h'", "'i'")):
        with pytest.raises((Altered, RuntimeError)):  # by a trigger, or by a constraint
            run(statement)
    downgrade(database, "0004")


def test_an_older_version_cannot_hold_approvers_and_their_approvals(database: Database) -> None:
    open_account(database, "people", approval_above="0")
    before = account_of(database)
    downgrade(database, "0023")
    migrate(database)
    assert account_of(database) == before  # with its seal
    assert before.approvers is None
    change_account(database, "people", Approvers(2, ("bob", "carol")))
    with pytest.raises(Conflict, match="accounts with approvers"):
        downgrade(database, "0023")
    assert is_migrated(database)
    entries_of(database)


def test_what_an_older_version_proposed_is_approved_by_a_newer_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(admission, "asking_accounts", lambda *_: None)
        older.setattr(admission, "first_state", lambda *_: "proposed")
        open_account(database, "people", approval_above="0")
        (proposed,) = charge(database, _PLAN)
    change_account(database, "people", read_budget({"definition": "zcdp", "rho": "2"}))
    downgrade(database, "0023")
    migrate(database)
    assert not change_account(database, "people", read_budget({"definition": "zcdp", "rho": "2"}), BOB).waits
    assert approve(database, proposed.id).state == "committed"
    entries_of(database)
