"""Prices of accountant 1, which took the rho of two values for randomised response with more.

None is below the present one, so verification holds them to that, and pricing again lowers what they charged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest

from service.ledger.accounts.budgets import read_price
from service.ledger.journal.entry_texts import price_of
from service.ledger.releases import charges, preparation
from service.ledger.storage.database import Database
from service.ledger.verification.recompute import recompute
from service.ledger.verification.verify import verify
from service.privacy.accounting.pricing import Price, price
from service.privacy.plans import Sequence
from service.privacy.plans.walking import Neighbouring
from tests.compatibility.earlier_accountant import price_as_version_1
from tests.ledger.charging import account_of, charge, commit, half_price, open_account, reserve, set_caps

_BUDGET = {"definition": "zcdp", "rho": "9"}
_RESPONSE = {"type": "randomized_response", "epsilon": "1/2", "values": 50, "tags": ["income"]}
_NOISE = {"type": "discrete_gaussian", "rho": "1/50", "tags": ["income"]}
_PART = {"type": "sequence", "parts": [_NOISE, {"type": "discrete_gaussian", "rho": "1/70", "tags": ["age"]}]}
_BOTH = {"type": "sequence", "parts": [_RESPONSE, _NOISE]}


@contextmanager
def _version_1() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        price_as_version_1(patch)
        yield patch


def _open(database: Database, *capped: str) -> None:
    caps = dict.fromkeys(capped, _BUDGET)
    open_account(database, neighbouring=Neighbouring.REPLACE_ONE, caps=caps, **_BUDGET)


def _half_of_parts(plan: Any, neighbouring: Neighbouring, orders: tuple[Fraction, ...]) -> Price:
    return (price if isinstance(plan, Sequence) else half_price)(plan, neighbouring, orders)


def _fault(database: Database) -> Any:
    with database.read() as connection:
        bad = verify(connection, "people").first_bad
    return bad and bad.reason


def test_a_ledger_of_version_1_is_valid_and_what_it_charged_too_much_is_taken_back(database: Database) -> None:
    with _version_1():
        _open(database, "age")
        (charged,) = charge(database, _BOTH)
        (first,) = reserve(database, _RESPONSE)
        (second,) = reserve(database, _RESPONSE)
        charge(database, _NOISE)
        set_caps(database, {"income": _BUDGET})
        commit(database, first)
        (late,) = charge(database, _RESPONSE)
        before = account_of(database).totals.rho.finite
    assert _fault(database) is None
    found = recompute(database, "people", apply=False)
    assert {release for release, *_ in found.prices} == {charged.id, first, second, late.id}
    for _, old, new in found.prices:
        was, present = (read_price(price_of(one)).rho for one in (old, new))
        assert was is not None
        assert present is not None
        assert present < was
    assert {(one.release, one.tag) for one in found.under_caps} == {
        (release, "income") for release in (None, first, second, late.id)
    }
    recompute(database, "people", apply=True)
    account = account_of(database)
    two, many = Fraction("0.122459"), Fraction("0.017159")
    assert before - account.totals.rho.finite == pytest.approx(4 * (two - many), rel=1e-5)
    assert _fault(database) is None
    assert not recompute(database, "people", apply=False).prices


@pytest.mark.parametrize("accountant", ["1", "2"])
def test_a_price_below_that_of_the_plan_is_found_whichever_of_the_two_charged_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, accountant: str
) -> None:
    _open(database)
    monkeypatch.setattr(charges, "ACCOUNTANT", accountant)
    charge(database, _NOISE)
    assert _fault(database) is None
    monkeypatch.setattr(preparation, "price", half_price)
    charge(database, _NOISE)
    assert _fault(database) == "the price is not that of the plan"


@pytest.mark.parametrize("accountant", ["1", "2"])
def test_a_price_under_a_cap_below_that_of_the_part_is_found_whichever_of_the_two_charged_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, accountant: str
) -> None:
    _open(database, "income")
    monkeypatch.setattr(charges, "ACCOUNTANT", accountant)
    monkeypatch.setattr(preparation, "price", _half_of_parts)
    charge(database, _PART)
    monkeypatch.undo()
    assert _fault(database) == "the price under a cap is not that of the tagged part"


@pytest.mark.parametrize("accountant", ["1", "2"])
def test_a_price_that_a_late_cap_counts_too_low_is_found_whichever_of_the_two_counted_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, accountant: str
) -> None:
    _open(database)
    reserve(database, _NOISE)
    monkeypatch.setattr("service.ledger.accounts.cap_changes.ACCOUNTANT", accountant)
    monkeypatch.setattr("service.ledger.accounts.caps.price", half_price)
    set_caps(database, {"income": _BUDGET})
    monkeypatch.undo()
    assert _fault(database) == "a cap does not count the earlier releases at their price"


@pytest.mark.parametrize(("accountant", "fault"), [("1", None), ("2", "the price is not that of the plan")])
def test_a_price_above_that_of_the_plan_may_be_one_of_version_1(
    database: Database, accountant: str, fault: str | None
) -> None:
    _open(database)
    with _version_1() as patch:
        patch.setattr(charges, "ACCOUNTANT", accountant)
        charge(database, _RESPONSE)
    assert _fault(database) == fault
