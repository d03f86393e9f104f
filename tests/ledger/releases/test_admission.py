"""Limits: the budgets that a release must fit, and the refusal that says which it does not fit."""

from dataclasses import replace
from fractions import Fraction

import pytest

from service.errors import AccountClosed, Overrun
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.releases import admission
from service.ledger.releases.admission import AccountCharge, Limit
from service.ledger.releases.preparation import Prepared
from service.ledger.storage.database import Database
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights
from service.privacy.accounting.totals import LossSum, Totals
from tests.ledger.charging import account_of, charge, open_account, prepared

_BUDGET = Budget(definition=Definition.ZCDP, cap=Fraction(1))
_HALF = Price(epsilon=Fraction(1), rho=Fraction(1, 2), delta=Fraction(0), linear=Fraction(1, 2), quanta=())


def _limit(spent: str, tag: str | None = None, window: str | None = None, account: str = "people") -> Limit:
    before = Totals(rho=LossSum(Fraction(spent)))
    return Limit(account, _BUDGET, Weights(), before, _HALF, tag, window)


def test_each_limit_that_a_release_does_not_fit_is_named_with_the_own_accounts_first() -> None:
    root = AccountCharge(_HALF, Totals(), [_limit("0.75", account="agency")])
    own = AccountCharge(_HALF, Totals(), [_limit("1/2"), _limit("1", tag="hispanic"), _limit("0.7", window="2026-01")])
    assert admission.failures_of([root, own]) == [
        Overrun("people", "zcdp", "rho", Fraction("0.5"), Fraction(0), tag="hispanic"),
        Overrun("people", "zcdp", "rho", Fraction("0.5"), Fraction("0.3"), window="2026-01"),
        Overrun("agency", "zcdp", "rho", Fraction("0.5"), Fraction("0.25")),
    ]


def _line(database: Database) -> tuple[list[AccountRecord], Prepared]:
    open_account(database, "agency", epsilon="1", definition="pure")
    open_account(database, "people", parent="agency", epsilon="0.5", definition="pure")
    charge(database, {"type": "geometric", "epsilon": "1/4"}, name="people")
    (release,) = prepared(database, {"type": "geometric", "epsilon": "1/4"}, name="people")
    return [account_of(database, "agency"), account_of(database, "people")], release


def test_the_charges_of_a_line_are_what_a_charge_makes_of_it(database: Database) -> None:
    line, release = _line(database)
    admission.require_line(line, [release])
    assert admission.first_state(line, release) == "committed"
    charges = admission.charges_of(line, release, held=False)
    assert [limit.account for limit in admission.limits_of(charges)] == ["people", "agency"]
    assert admission.failures_of(charges) == []
    charge(database, {"type": "geometric", "epsilon": "1/4"}, name="people")
    after = [account_of(database, "agency"), account_of(database, "people")]
    assert [one.totals for one in charges] == [account.totals for account in after]
    full = admission.failures_of(admission.charges_of(after, release, held=False))
    assert [(failure.account, failure.remaining) for failure in full] == [("people", Fraction(0))]


def test_a_line_that_takes_no_releases_is_refused_and_so_is_another_line(database: Database) -> None:
    line, release = _line(database)
    with pytest.raises(AccountClosed):
        admission.require_line([replace(line[0], state="closed"), line[1]], [release])
    with pytest.raises(ValueError, match="prepared for agency"):
        admission.require_line(line[:1], [release])
