"""Windows that are read and compared under the lock of an account: few, by the work that they are."""

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import pytest

from service.errors import BudgetExceeded, Conflict
from service.ledger.accounts import accounts
from service.ledger.releases import charges, settlement
from service.ledger.releases.settlement import in_list, without_due_reservations
from service.ledger.spending import window_rows, window_state
from service.ledger.spending.window_state import looked_at
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification.verify import verify
from service.privacy.accounting import privacy_filter, windows as compared_windows
from service.privacy.accounting.privacy_filter import ORDERS, Weights
from tests.ledger.charging import account_of, charge, left, open_account, prepared, reserve, void
from tests.ledger.ledgers import Clock

_EACH = {"calendar": "index", "participation": {"offsets": [0]}}
_TINY = {"type": "geometric", "epsilon": "1/1000000"}
_LITTLE = {"type": "geometric", "epsilon": "0.001"}


class _Reads:
    """Reads of all windows, their rows, and the comparisons of totals with a budget."""

    def __init__(self) -> None:
        self.all = self.rows = self.comparisons = 0


@contextmanager
def _counted() -> Iterator[_Reads]:
    reads = _Reads()
    read, compare = window_rows.read_windows, privacy_filter.shortfalls

    def reading(connection: Any, account_id: int, places: Any) -> Any:
        found = read(connection, account_id, places)
        reads.all, reads.rows = reads.all + places.everything, reads.rows + len(found)
        return found

    def comparing(*given: Any) -> Any:
        reads.comparisons += 1
        return compare(*given)

    with patch.object(window_state, "read_windows", reading), patch.object(compared_windows, "shortfalls", comparing):
        yield reads


def _look_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(window_state, "looked_at", lambda _: number)


def _two_unlike_windows_and_more(database: Database, more: int) -> None:
    """One window with pure noise and one with Gaussian noise, so that the maximum is far above both."""
    open_account(database, definition="approximate", epsilon="1", delta="1e-6", periods=_EACH)
    charge(database, {"type": "geometric", "epsilon": "0.95"}, periods={"from": 0, "to": 0})
    charge(database, {"type": "discrete_gaussian", "rho": "0.0235"}, periods={"from": 1, "to": 1})
    charge(database, _LITTLE, periods={"from": 2, "to": more + 1})


def test_windows_are_looked_at_by_their_work() -> None:
    assert looked_at(Weights()) == 8_333
    assert looked_at(Weights(ORDERS)) == 1_492


def test_equal_totals_are_compared_once(database: Database) -> None:
    _two_unlike_windows_and_more(database, 40)
    with _counted() as reads:
        charge(database, _TINY, periods="all")
    assert (reads.all, reads.rows, reads.comparisons) == (1, 42, 1 + 3)


def test_a_batch_to_all_periods_compares_no_more_windows_than_one_release(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound, which counts each release, the maximum decides: then the batch does not fit."""
    _two_unlike_windows_and_more(database, 8)
    _look_at(monkeypatch, 50)
    with _counted() as reads:
        charge(database, *[_TINY] * 5, periods="all")
    assert (reads.all, reads.comparisons) == (1, 5 * (1 + 3))
    with _counted() as reads, pytest.raises(BudgetExceeded) as refused:
        charge(database, *[_TINY] * 6, periods="all")
    assert (reads.all, reads.comparisons) == (0, 0)
    assert refused.value.failures[0].window is None
    with _counted() as reads, pytest.raises(BudgetExceeded):
        charges.dry_run(database, prepared(database, *[_TINY] * 6, periods="all"))
    assert (reads.all, reads.comparisons) == (0, 0)


def test_windows_that_a_batch_reads_anyway_are_not_compared_with_releases_to_all(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_unlike_windows_and_more(database, 8)
    _look_at(monkeypatch, 9)
    some, everywhere = prepared(database, _TINY, periods={"from": 0, "to": 9}), prepared(database, _TINY, periods="all")
    with _counted() as reads, pytest.raises(BudgetExceeded):
        charges.dry_run(database, [*some, *everywhere])
    assert (reads.all, reads.rows) == (0, 10)
    assert reads.comparisons == 1 + 3


def test_the_windows_of_a_line_are_looked_at_together(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, parent in (("agency", None), ("people", "agency")):
        open_account(database, name, parent=parent, periods=_EACH)
    charge(database, {"type": "discrete_gaussian", "rho": "0.9"}, periods={"from": 0, "to": 4})
    for most, reads_of_all in ((10, 2), (9, 0)):
        _look_at(monkeypatch, most)
        with _counted() as reads, pytest.raises(BudgetExceeded):
            charge(database, {"type": "discrete_gaussian", "rho": "0.2"}, periods="all")
        assert reads.all == reads_of_all


def test_accounts_of_a_line_whose_windows_are_all_read_share_their_number(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_two = {"calendar": "index", "participation": {"any": 2}}
    for name, parent in (("agency", None), ("people", "agency")):
        open_account(database, name, parent=parent, periods=any_two)
    open_account(database, "alone", periods=any_two)
    _look_at(monkeypatch, 9)
    tiny = {"type": "discrete_gaussian", "rho": "1/1000"}
    charge(database, tiny, periods={"from": 0, "to": 3})
    charge(database, tiny, name="alone", periods={"from": 0, "to": 8})
    for name, place in (("people", 4), ("alone", 9)):
        with pytest.raises(Conflict, match="the most that it can have"):
            charge(database, tiny, name=name, periods={"list": [place]})
    charge(database, tiny, periods={"list": [3]})
    _look_at(monkeypatch, 7)  # as in a ledger with more windows than this version admits
    charge(database, tiny, periods={"list": [3]})


@pytest.mark.parametrize("settled", ["voided", "expired"])
def test_many_windows_are_not_read_where_one_gives_its_charge_back(
    database: Database, monkeypatch: pytest.MonkeyPatch, settled: str
) -> None:
    time = Clock(monkeypatch)
    open_account(database, periods=_EACH)
    charge(database, {"type": "discrete_gaussian", "rho": "0.1"}, periods={"from": 0, "to": 9})
    for most, rows, room in ((9, 1, Fraction(2, 10)), (10, 11, Fraction(9, 10))):
        _look_at(monkeypatch, most)
        (held,) = reserve(database, {"type": "discrete_gaussian", "rho": "0.7"}, periods={"from": 3, "to": 3})
        time.forward(2)
        with _counted() as reads:
            if settled == "voided":
                monkeypatch.setattr(clock, "now", lambda: "2030-01-01T00:00:00.000000Z")
                void(database, held)
            else:
                assert settlement.expire(database, account_of(database).id)
        time.forward(0)
        assert reads.rows == rows
        account = account_of(database)
        assert account.budget.cap - (account.totals.rho.value or 0) == room
    with database.read() as connection:
        assert verify(connection, "people").valid


def test_lists_of_accounts_read_no_window(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overdue holds of some periods count in the bound until their expiry is recorded; those of all count no longer."""
    time = Clock(monkeypatch)
    open_account(database, periods=_EACH)
    charge(database, {"type": "discrete_gaussian", "rho": "0.1"}, periods={"from": 0, "to": 9})
    reserve(database, {"type": "discrete_gaussian", "rho": "0.2"}, periods={"from": 3, "to": 3})
    reserve(database, {"type": "discrete_gaussian", "rho": "0.4"}, periods="all")
    time.forward(2)
    with database.read() as connection, _counted() as reads:
        record = accounts.read_account(connection, "people")
        listed = in_list(connection, record, clock.now())
        assert reads.rows == 0
        alone = without_due_reservations(connection, record, clock.now())
    assert (listed.releases, alone.releases) == (1, 1)
    assert (listed.totals.rho.value, alone.totals.rho.value) == (Fraction(3, 10), Fraction(1, 10))
    assert left(database) == Fraction(9, 10)
    assert settlement.expire(database, record.id)
    with database.read() as connection:
        assert in_list(connection, accounts.read_account(connection, "people"), clock.now()).totals == alone.totals
