"""Rows of allotments that were put back give nothing back to the accounts above: their journals say what is charged."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from service.errors import Altered
from service.ledger.accounts import account_changes, allotments
from service.ledger.accounts.allotments import AllottedSum
from service.ledger.accounts.budgets import read_budget
from service.ledger.releases import allotment_charges
from service.ledger.storage.database import Database, open_database
from service.ledger.verification.recompute import recompute
from service.privacy.accounting.totals import Totals
from tests.ledger.charging import (
    ANN,
    account_of,
    change_account,
    charge,
    entries_of,
    open_account,
    rows_of_failed,
)
from tests.ledger.writing import stored, unprotected

_HALF, _FIFTH, _TENTH = ({"definition": "zcdp", "rho": rho} for rho in ("1/2", "1/5", "1/10"))
_NOISE = {"type": "discrete_gaussian", "rho": "1/50"}
Rows = dict[str, dict[str, Any]]
_ALTERED = "an allotment is not as the service wrote it"


@pytest.fixture
def lowered(database: Database) -> Rows:
    """The rows of an allotment before its budget was lowered.

    What the account above is charged otherwise, and has allotted to another account, is more than the difference.
    """
    open_account(database, "agency", definition="zcdp", rho="2")
    open_account(database, "people", parent="agency", funding="allotted", **_HALF)
    charge(database, _NOISE, name="agency")
    before = _rows(database)
    change_account(database, "people", read_budget(_TENTH))
    open_account(database, "others", parent="agency", funding="allotted", **_HALF)
    return before


def _rows(database: Database) -> Rows:
    """The row of the allotment, and that of its mechanism among what the account above has spent."""
    parent, child = account_of(database, "agency").id, account_of(database, "people").id
    queries = {
        "allotments": f"child_id = {child}",
        "spending": f"account_id = {parent} AND subplan LIKE '%of the account people%'",
    }
    with database.read() as connection:
        return {
            table: stored(connection.execute(text(f"SELECT * FROM {table} WHERE {where}")).one())
            for table, where in queries.items()
        }


def _put_back(database: Database, rows: Rows) -> None:
    digest = _rows(database)["spending"]["digest"]
    for table, where in (("spending", f"digest = '{digest}'"), ("allotments", "child_id = :child_id")):
        said = ", ".join(f"{name} = :{name}" for name in rows[table])
        unprotected(database, table, f"UPDATE {table} SET {said} WHERE {where}", **rows[table])


def _raise(database: Database) -> object:
    return change_account(database, "people", read_budget(_FIFTH))


def _close(database: Database) -> object:
    return change_account(database, "people", "closed")


def _price_again(database: Database) -> object:
    return recompute(database, "agency", apply=True)


@pytest.mark.parametrize("act", [_raise, _close, _price_again])
def test_a_row_that_was_put_back_is_refused(
    database: Database, lowered: Rows, act: Callable[[Database], object]
) -> None:
    present, agency = _rows(database), account_of(database, "agency")
    _put_back(database, lowered)
    with pytest.raises(Altered, match=_ALTERED):
        act(database)
    assert account_of(database, "agency") == agency
    _put_back(database, present)
    act(database)
    for name in ("agency", "people", "others"):
        entries_of(database, name)


@pytest.mark.usefixtures("lowered")
def test_a_row_of_a_failed_change_is_refused(database: Database) -> None:
    raising = account_changes.change_account(
        database, ANN, "people", read_budget(_HALF), "/budget", lambda _: True, role="steward"
    )
    rows, child = rows_of_failed(database, raising, "allotments", "spending"), account_of(database, "people").id
    (failed,) = (row for row in rows["allotments"] if row["child_id"] == child)
    (spent,) = (row for row in rows["spending"] if "of the account people" in row["subplan"])
    assert failed["seq"] > account_of(database, "agency").head.seq
    _put_back(database, {"allotments": failed, "spending": spent})
    with pytest.raises(Altered, match=_ALTERED):
        _close(database)
    charge(database, _NOISE, name="agency")  # its entry has the row's number
    with pytest.raises(Altered, match=_ALTERED):
        _close(database)


@pytest.mark.usefixtures("lowered")
def test_a_row_that_is_missing_is_refused(database: Database) -> None:
    unprotected(database, "allotments", f"DELETE FROM allotments WHERE child_id = {account_of(database, 'people').id}")
    with pytest.raises(Altered, match=_ALTERED):
        _raise(database)


@pytest.mark.usefixtures("lowered")
def test_changes_by_another_process_are_followed(database: Database) -> None:
    other = open_database(database.url)
    other.secret = database.secret
    for turn, budget in enumerate((_FIFTH, _HALF, _TENTH, _FIFTH)):
        change_account((database, other)[turn % 2], "people", read_budget(budget))
        charge(database, _NOISE, name="agency")
    other.close()
    entries_of(database, "agency")


@pytest.mark.usefixtures("lowered")
def test_the_sum_of_allotments_does_not_get_below_zero(database: Database) -> None:
    agency, child = account_of(database, "agency"), account_of(database, "people")
    with database.read() as connection:
        row = allotments.read_rows(connection, [agency.id], child.id)[agency.id]
    with pytest.raises(Altered, match=_ALTERED):
        allotment_charges._without(replace(agency, allotted=AllottedSum(1, Totals())), row)
