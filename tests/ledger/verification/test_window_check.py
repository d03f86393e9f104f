"""The check of the maximum that an account's row states, against the windows that its journal makes."""

from dataclasses import replace
from fractions import Fraction

import pytest

from service.ledger.releases import settlement
from service.ledger.spending import window_state
from service.ledger.spending.window_state import WindowState
from service.ledger.storage.database import Database
from service.ledger.verification.verify import Verdict, verify
from service.privacy.accounting.pricing import QUANTA
from service.privacy.accounting.privacy_filter import ORDERS, Weights
from service.privacy.accounting.totals import Totals
from service.privacy.accounting.windows import in_quanta
from tests.ledger.charging import account_of, charge, open_account, reserve, void
from tests.ledger.ledgers import Clock

_EACH = {"calendar": "month", "participation": {"offsets": [0]}}
_WIDE = {"type": "discrete_gaussian", "sigma_squared": "4"}
_NARROW = {"type": "discrete_osgt", "sigma_squared": "1000.5", "m": "3"}


def _month(number: int) -> dict[str, list[str]]:
    return {"list": [f"2026-{number:02}"]}


def _verified(database: Database) -> Verdict:
    with database.read() as connection:
        return verify(connection, "people")


def _linear_beside_quanta_that_left(database: Database, time: Clock, settled: str) -> None:
    open_account(database, definition="approximate", epsilon="30", delta="1e-6", periods=_EACH)
    for _ in range(3):
        charge(database, _WIDE, periods=_month(1))
    (held,) = reserve(database, _NARROW, periods=_month(2))
    if settled == "voided":
        void(database, held)
    else:
        time.forward(2)
        assert settlement.expire(database, account_of(database).id)


@pytest.mark.parametrize("settled", ["voided", "expired"])
def test_a_maximum_in_quanta_whose_window_left_follows_from_the_journal(
    database: Database, monkeypatch: pytest.MonkeyPatch, settled: str
) -> None:
    _linear_beside_quanta_that_left(database, Clock(monkeypatch), settled)
    windows = account_of(database).windows
    assert windows is not None
    assert not windows.most.linear
    assert windows.most.quanta
    assert _verified(database).valid
    charge(database, _WIDE, periods=_month(1))
    charge(database, _WIDE, periods="all")
    assert _verified(database).valid


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("order", [0, 100, 249])
def test_a_maximum_that_differs_by_one_quantum_is_found(
    database: Database, monkeypatch: pytest.MonkeyPatch, order: int, change: int
) -> None:
    _linear_beside_quanta_that_left(database, Clock(monkeypatch), "voided")
    read = window_state.read_state

    def altered(text: str) -> WindowState:
        state = read(text)
        quanta = list(state.most.quanta)
        quanta[order] += change
        return replace(state, most=replace(state.most, quanta=tuple(quanta)))

    monkeypatch.setattr(window_state, "read_state", altered)
    found = _verified(database).first_bad
    assert found is not None
    assert "period_state does not follow" in found.reason


@pytest.mark.parametrize("definition", ["pure", "zcdp"])
def test_without_orders_a_linear_part_that_is_left_out_is_found(
    database: Database, monkeypatch: pytest.MonkeyPatch, definition: str
) -> None:
    cap = {"pure": "epsilon", "zcdp": "rho"}[definition]
    plan = {"pure": {"type": "geometric", "epsilon": "0.1"}, "zcdp": _WIDE}[definition]
    open_account(database, definition=definition, periods=_EACH, **{cap: "30"})
    charge(database, plan, periods=_month(1))
    assert _verified(database).valid
    read = window_state.read_state

    def altered(text: str) -> WindowState:
        state = read(text)
        return replace(state, most=replace(state.most, linear=state.most.linear - Fraction(1, 10**30)))

    monkeypatch.setattr(window_state, "read_state", altered)
    assert not _verified(database).valid


def test_quanta_are_rounded_up() -> None:
    weights = Weights(ORDERS[::50])
    found = in_quanta(weights, Totals(linear=Fraction(1, 3)))
    assert found.linear == 0
    for order, quanta in zip(weights.orders, found.quanta, strict=True):
        assert quanta - 1 < order / 3 * QUANTA <= quanta
