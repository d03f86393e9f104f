"""Accounts in the ledger: what opening fixes, what a change writes, and that totals are sums of the journal."""

import json
from fractions import Fraction

import pytest
from sqlalchemy import text

from service.errors import Altered, BudgetExceeded, Conflict, InvalidInput, NotFound
from service.ledger.accounts import account_rows, accounts
from service.ledger.accounts.budgets import read_budget
from service.ledger.storage.database import Database
from service.privacy.accounting.totals import Totals
from tests.ledger.charging import SECRET, account_of, change_account, charge, entries_of, open_account
from tests.ledger.writing import as_owner

_GAUSSIAN = {"type": "gaussian", "rho": "1/7"}


def _change(database: Database, change: str | dict[str, str]) -> None:
    budget = change if isinstance(change, str) else read_budget(change)
    change_account(database, "people", budget)


def test_an_account_begins_with_nothing_spent(database: Database) -> None:
    account = open_account(database, definition="approximate", epsilon="1", delta="1e-9")
    assert account.totals == Totals()
    assert (account.state, account.head.seq, len(account.weights.orders)) == ("open", 1, 250)
    (opened,) = entries_of(database)
    content = json.loads(opened.body)["content"]
    assert (opened.kind, content["budget"]) == (
        "account_opened",
        {"definition": "approximate", "epsilon": "1", "delta": "1e-9"},
    )
    # What admission depends on is in the journal, so that a verifier needs no more than it.
    assert sum(map(Fraction, content["admission"]["weights"])) == 1


def test_a_name_is_taken_once(database: Database) -> None:
    opened = open_account(database)
    with pytest.raises(Conflict):
        open_account(database, definition="pure", epsilon="5")
    assert account_of(database) == opened


def test_no_account_gets_the_number_of_the_installations_journal(database_url: str, database: Database) -> None:
    """The attack: the database gives it, and the account's entries are then looked for in that journal, in vain."""
    stranger = "'s', 'person', 'add_remove', '', '', '', '', 'open', '', 1, ''"
    columns = "id, name, unit, neighbouring, description, budget, admission, totals, state, created_at, head_seq"
    with as_owner(database_url) as owner:
        if database.kind == "sqlite":
            owner.execute(text(f"INSERT INTO accounts ({columns}, head_hash) VALUES (-1, {stranger})"))
        else:
            owner.execute(text("ALTER SEQUENCE accounts_id_seq MINVALUE 0 RESTART 0"))
    if database.kind == "postgresql":
        with pytest.raises(Altered):
            open_account(database)
    assert open_account(database).id == 1


def test_no_seal_makes_a_row_of_that_number_an_accounts(database: Database) -> None:
    open_account(database)
    with database.read() as connection:
        row = account_rows.read_row(connection, "people")
    assert row is not None
    other = dict(row._mapping) | {"id": 0}
    other["seal"] = account_rows.seal_of(SECRET, other)
    assert (account_rows.is_sealed(SECRET, row._mapping), account_rows.is_sealed(SECRET, other)) == (True, False)


def test_an_account_that_is_not_there(database: Database) -> None:
    with pytest.raises(NotFound, match="account 'people'"):
        account_of(database)
    with pytest.raises(NotFound):
        _change(database, "closed")


def test_every_change_is_an_entry(database: Database) -> None:
    open_account(database)
    for change in ("closed", "closed", "open", {"definition": "zcdp", "rho": "2"}, {"definition": "zcdp", "rho": "2"}):
        _change(database, change)
    kinds = [entry.kind for entry in entries_of(database)]
    assert kinds == ["account_opened", "account_closed", "account_reopened", "budget_changed", "budget_changed"]
    assert account_of(database).head.seq == 5


def test_a_change_leaves_what_admission_is_by(database: Database) -> None:
    opened = open_account(database, definition="approximate", epsilon="1", delta="1e-9", declared_delta="1e-10")
    _change(database, {"definition": "approximate", "epsilon": "5", "delta": "1e-6", "declared_delta": "1e-10"})
    changed = account_of(database)
    assert (changed.weights, changed.totals) == (opened.weights, opened.totals)
    assert (changed.budget.cap, changed.budget.delta) == (Fraction(5), Fraction(1, 10**6))


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"definition": "pure", "epsilon": "1"}, "/budget/definition"),
        ({"definition": "rdp", "alpha": "3", "epsilon": "9"}, "/budget/alpha"),
    ],
)
def test_a_change_of_more_than_figures(database: Database, change: dict[str, str], pointer: str) -> None:
    open_account(database, definition="rdp", alpha="2", epsilon="1")
    with pytest.raises(InvalidInput) as refused:
        _change(database, change)
    assert refused.value.faults[0].pointer == pointer
    assert len(entries_of(database)) == 1


def test_a_cap_goes_down_to_what_is_spent_and_no_lower(database: Database) -> None:
    open_account(database)
    for _ in range(3):
        charge(database, _GAUSSIAN)
    with pytest.raises(BudgetExceeded) as refused:
        _change(database, {"definition": "zcdp", "rho": str(Fraction(3, 7) - Fraction(1, 10**30))})
    (failure,) = refused.value.failures
    assert (failure.cap, str(failure.requested)) == ("rho", "3/7")
    assert failure.requested == pytest.approx(3 / 7)
    _change(database, {"definition": "zcdp", "rho": "3/7"})
    with pytest.raises(BudgetExceeded):
        charge(database, {"type": "gaussian", "rho": "1e-30"})


def test_accounts_are_listed_by_name(database: Database) -> None:
    for name in ("b", "a", "c", "B-", "_"):
        open_account(database, name.lower())
    with database.read() as connection:
        names = [account.name for account in accounts.list_accounts(connection, "", 10, accounts.Wanted())]
        assert sorted(names) == ["_", "a", "b", "b-", "c"]
        for start in range(5):
            page = accounts.list_accounts(connection, names[start], 2, accounts.Wanted())
            assert [account.name for account in page] == names[start + 1 : start + 3]
        some = accounts.list_accounts(connection, "", 10, accounts.Wanted(only=frozenset({"c", "a", "zzz"})))
        assert [account.name for account in some] == ["a", "c"]


def test_totals_of_a_journal_with_infinite_contributions(database: Database) -> None:
    """A Gaussian has no pure epsilon: the total is infinite, and says by how many charges."""
    open_account(database)
    charge(database, _GAUSSIAN)
    charge(database, {"type": "geometric", "epsilon": "0.1"}, _GAUSSIAN)
    totals = account_of(database).totals
    assert (totals.epsilon.finite, totals.epsilon.infinite) == (Fraction(1, 10), 2)
    assert [entry.kind for entry in entries_of(database)] == ["account_opened", "committed", "committed", "committed"]
