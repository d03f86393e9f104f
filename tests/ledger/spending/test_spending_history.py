"""The course of a budget is what its entries say, also where one of them commits without a reservation."""

from fractions import Fraction

import pytest

from service.ledger.spending.spending_history import spending_history
from service.ledger.storage.database import Database
from tests.ledger.charging import account_of, approve, charge, open_account
from tests.ledger.ledgers import A


@pytest.mark.parametrize("parent", [None, "agency"])
def test_a_proposal_that_an_approval_commits_is_spent_from_then_on(database: Database, parent: str | None) -> None:
    if parent is not None:
        open_account(database, parent)
    open_account(database, parent=parent, approval_above="0")
    (proposed,) = charge(database, A)
    approve(database, proposed.id)
    for name in ("people", parent or "people"):
        with database.read() as connection:
            *_, before, after = spending_history(connection, account_of(database, name), 10).steps
        assert (before.kind, before.committed) == ("proposed", Fraction(0))
        assert (after.kind, after.committed, after.counted) == ("approved", before.counted, before.counted)
