"""Budgets, totals and prices as JSON: what was written is read back the same, and nothing without a meaning is read."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from service.errors import InvalidInput
from service.ledger.accounts import budgets
from service.ledger.accounts.budgets import (
    read_budget,
    read_price,
    read_totals,
    read_weights,
    store_totals,
    stored_totals,
    write_budget,
    write_price,
    write_totals,
    write_weights,
)
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Budget, Definition, open_weights
from service.privacy.accounting.totals import LossSum, Totals, add_price

_ANY = st.fractions(min_value=0)
_MAYBE = st.none() | _ANY
_QUANTA = st.integers(0, 10**40)
_SUMS = st.builds(LossSum, _ANY, st.integers(0, 10))


@pytest.mark.parametrize(
    ("document", "budget"),
    [
        ({"definition": "pure", "epsilon": "1/3"}, Budget(definition=Definition.PURE, cap=Fraction(1, 3))),
        (
            {"definition": "zcdp", "rho": "0.1", "delta": "0.001"},
            Budget(definition=Definition.ZCDP, cap=Fraction(1, 10), declared_delta=Fraction(1, 1000)),
        ),
        (
            {"definition": "rdp", "alpha": "1.5", "epsilon": "2"},
            Budget(definition=Definition.RDP, cap=Fraction(2), alpha=Fraction(3, 2)),
        ),
        (
            {"definition": "approximate", "epsilon": "2", "delta": "0.1", "declared_delta": "0.05"},
            Budget(
                definition=Definition.APPROXIMATE,
                cap=Fraction(2),
                delta=Fraction(1, 10),
                declared_delta=Fraction(1, 20),
            ),
        ),
    ],
)
def test_a_budget_is_what_its_document_says(document: dict[str, str], budget: Budget) -> None:
    assert read_budget(document) == budget
    assert write_budget(budget) == document


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"definition": "pure", "epsilon": "0"}, "/b/epsilon"),
        ({"definition": "zcdp", "rho": "-1"}, "/b/rho"),
        ({"definition": "zcdp", "rho": "1", "delta": "1"}, "/b/delta"),
        ({"definition": "rdp", "alpha": "1", "epsilon": "1"}, "/b/alpha"),
        ({"definition": "approximate", "epsilon": "1", "delta": "0"}, "/b/delta"),
        ({"definition": "approximate", "epsilon": "1", "delta": "0.1", "declared_delta": "0.1"}, "/b/declared_delta"),
    ],
)
def test_a_budget_without_a_meaning(document: dict[str, str], pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_budget(document, "/b")
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


@given(st.builds(Price, _MAYBE, _MAYBE, _ANY, _ANY, st.lists(st.none() | _QUANTA, max_size=4).map(tuple)))
def test_prices_come_back_the_same(price: Price) -> None:
    assert read_price(json.loads(json.dumps(write_price(price)))) == price


@given(
    st.builds(
        Totals,
        _SUMS,
        _SUMS,
        _ANY,
        _ANY,
        st.lists(_QUANTA, max_size=4).map(tuple),
        st.lists(st.integers(0, 9), max_size=4).map(tuple),
    )
)
def test_totals_come_back_the_same_and_equal_ones_have_one_text(totals: Totals) -> None:
    written = write_totals(totals)
    assert read_totals(written) == totals
    assert write_totals(read_totals(written)) == written


@pytest.mark.parametrize(
    "document",
    [
        {"definition": "pure", "epsilon": "1"},
        {"definition": "rdp", "alpha": "7/3", "epsilon": "1"},
        {"definition": "approximate", "epsilon": "1", "delta": "1e-9"},
    ],
)
def test_weights_come_back_the_same(document: Any) -> None:
    weights = open_weights(read_budget(document))
    assert read_weights(write_weights(weights)) == weights


def test_an_infinite_price_stays_infinite_in_the_totals() -> None:
    infinite = Price(None, None, Fraction(0), Fraction(0), (None, 7))
    finite = Price(Fraction(1), None, Fraction(0), Fraction(0), ())
    totals = read_totals(write_totals(add_price(add_price(Totals(), infinite), finite)))
    assert (totals.epsilon, totals.epsilon.value) == (LossSum(Fraction(1), 1), None)
    assert (totals.rho.infinite, totals.quanta, totals.infinite) == (2, (0, 7), (1, 0))


def test_totals_that_were_stored_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A charge often reads the rows that the one before it wrote."""
    amount = Price(None, Fraction(1, 3), Fraction(1, 10**9), Fraction(1, 7), (5, None, 10**30))
    totals = add_price(add_price(Totals(), amount), amount)
    written = store_totals(totals)
    assert written == write_totals(totals)
    assert read_totals(written) == totals
    monkeypatch.setattr(budgets, "read_totals", None)
    assert stored_totals("".join(written)) == totals
