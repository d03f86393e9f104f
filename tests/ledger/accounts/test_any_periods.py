"""Accounts where a unit can be in any periods: every charge and settlement against all sets of so many months."""

import io
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection

from service.errors import Altered, BudgetExceeded, Conflict, Overrun
from service.ledger.installation.signing import Signer
from service.ledger.releases import charges
from service.ledger.spending import window_rows, window_state
from service.ledger.storage.database import Database
from service.ledger.verification.imports import rebuild
from service.ledger.verification.recompute import recompute
from service.ledger.verification.verify import verify
from service.privacy.accounting.pricing import price
from service.privacy.mechanisms import DiscreteGaussian
from service.privacy.periods import PeriodSet
from service.privacy.plans.walking import Neighbouring
from tests.ledger.accounts.test_periods import QUARTERS, month, months, noise, windows_of
from tests.ledger.charging import (
    account_of,
    approve,
    charge,
    commit,
    entries_of,
    left,
    open_account,
    prepared,
    reserve,
    void,
)
from tests.ledger.ledgers import Clock, exported
from tests.ledger.verification.test_recompute import older
from tests.ledger.writing import unprotected

__all__ = ["older"]  # a fixture


def any_of(number: int, calendar: str = "month") -> dict[str, Any]:
    return {"calendar": calendar, "participation": {"any": number}}


@dataclass
class Naive:
    """Releases with the months that they read; a unit loses what the largest months lose, and what reads all."""

    number: int
    cap: Fraction = Fraction(1)
    counted: dict[str, tuple[Fraction, frozenset[int] | None]] = field(default_factory=dict)

    def of(self, place: int) -> Fraction:
        return sum((rho for rho, read in self.counted.values() if read is not None and place in read), Fraction(0))

    @property
    def worst(self) -> Fraction:
        common = sum((rho for rho, read in self.counted.values() if read is None), Fraction(0))
        return common + sum(sorted(map(self.of, range(40)))[-self.number :])

    def fits(self, rho: Fraction, read: frozenset[int] | None) -> bool:
        self.counted["new"] = rho, read
        fits = self.worst <= self.cap
        del self.counted["new"]
        return fits

    def check(self, database: Database, name: str = "people") -> None:
        assert left(database, name) == self.cap - self.worst
        found = windows_of(database, name)
        assert {place: window.totals.rho.finite for place, window in found.items() if window.releases} == {
            place: spent for place in range(40) if (spent := self.of(place))
        }
        assert all(
            window.releases == sum(read is not None and place in read for _, read in self.counted.values())
            for place, window in found.items()
        )


def _read(random: Random) -> tuple[frozenset[int] | None, Any]:
    if random.random() < 0.2:
        return None, "all"
    numbers = random.sample(range(12), random.randrange(1, 5))
    return frozenset(numbers), months(*numbers)


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_random_charges_and_settlements_agree_with_sets_of_months(
    database: Database, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    time, random = Clock(monkeypatch), Random(number)
    open_account(database, periods=any_of(number))
    naive, held = Naive(number), list[str]()
    for _ in range(60):
        what = random.random()
        if what < 0.55 or not held:
            rho, (read, stated) = Fraction(random.randrange(1, 7), 20 * number), _read(random)
            fits = naive.fits(rho, read)
            try:
                if random.random() < 0.5:
                    (release,) = reserve(database, noise(str(rho)), periods=stated)
                    held.append(release)
                else:
                    (done,) = charge(database, noise(str(rho)), periods=stated)
                    release = done.id
                assert fits
                naive.counted[release] = rho, read
            except BudgetExceeded:
                assert not fits
        else:
            release = held.pop(random.randrange(len(held)))
            if what < 0.75:
                commit(database, release)
            else:
                void(database, release)
                del naive.counted[release]
        naive.check(database)
    entries_of(database)
    time.forward(2)
    for release in held:
        del naive.counted[release]
    assert left(database) == naive.cap - naive.worst  # to readers, before any expiry is recorded
    charge(database, noise("0.000001"), periods=months(30))  # lets them expire
    naive.counted["last"] = Fraction(1, 10**6), frozenset({30})
    naive.check(database)
    entries_of(database)


_BUDGETS: list[dict[str, str]] = [
    {"definition": "zcdp", "rho": "1"},
    {"definition": "pure", "epsilon": "3"},
    {"definition": "rdp", "alpha": "7/3", "epsilon": "2"},
    {"definition": "approximate", "epsilon": "3", "delta": "1e-6"},
]
_PLANS: list[dict[str, Any]] = [
    {"type": "geometric", "epsilon": "1/3"},
    {"type": "geometric", "epsilon": "0.7"},
    {"type": "geometric", "epsilon": "1"},
]


def _outcome(database: Database, name: str, plan: Any, stated: Any, *, held: bool) -> str | list[Overrun]:
    """The release, or the caps that it does not fit, whatever the account is called."""
    try:
        if held:
            return reserve(database, plan, name=name, periods=stated)[0]
        return charge(database, plan, name=name, periods=stated)[0].id
    except BudgetExceeded as refused:
        return [failure._replace(account="") for failure in refused.failures]


@pytest.mark.parametrize("budget", _BUDGETS, ids=lambda budget: budget["definition"])
def test_any_one_period_is_the_offset_0_in_every_figure(database: Database, budget: dict[str, str]) -> None:
    open_account(database, "by offset", periods={"calendar": "month", "participation": {"offsets": [0]}}, **budget)
    open_account(database, "by any", periods=any_of(1), **budget)
    random, held, refused = Random(str(budget)), list[tuple[str, str]](), 0
    plans = [*_PLANS, noise("0.05"), noise("1/7")] if budget["definition"] != "pure" else _PLANS
    for _ in range(40):
        if held and random.random() < 0.3:
            for name, release in zip(("by offset", "by any"), held.pop(random.randrange(len(held))), strict=True):
                void(database, release, name)
        else:
            plan, (_, stated), holds = random.choice(plans), _read(random), random.random() < 0.5
            one, other = (_outcome(database, name, plan, stated, held=holds) for name in ("by offset", "by any"))
            if isinstance(one, str) and isinstance(other, str):
                held += [(one, other)] if holds else []
            else:
                assert one == other
                refused += 1
        by_offset, by_any = account_of(database, "by offset"), account_of(database, "by any")
        assert by_offset.totals == by_any.totals
        assert by_offset.windows is not None
        assert by_any.windows is not None
        assert (by_offset.windows.common, by_offset.windows.most) == (by_any.windows.common, by_any.windows.most)
        assert windows_of(database, "by offset") == windows_of(database, "by any")
    assert refused
    for name in ("by offset", "by any"):
        entries_of(database, name)


def test_a_refusal_names_the_worst_set_of_periods(database: Database) -> None:
    open_account(database, periods=any_of(2))
    charge(database, noise("0.5"), periods=months(4))
    charge(database, noise("0.25"), periods=months(1))
    charge(database, noise("0.2"), periods=months(8))
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("0.4"), periods=months(1, 7, 8))
    failure = refused.value.failures[0]  # the months 1 and 8 would have 0.65 and 0.6
    assert failure.window == f"{month(1)}, {month(8)}"
    assert (str(failure.requested), str(failure.remaining)) == ("1/2", "1/4")
    assert failure.remaining == 0.25
    assert refused.value.noise_multiplier() is not None
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("0.4"), periods="all")
    assert refused.value.failures[0].window == f"{month(1)}, {month(4)}"
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("0.6"), periods=months(30))
    assert refused.value.failures[0].window == f"{month(4)}, {month(30)}"
    charge(database, noise("0.25"), periods="all")
    assert left(database) == 0
    charge(database, noise("0.2"), periods=months(30))  # beside 0.5, less than the 0.25 that is counted
    entries_of(database)


def test_long_sets_are_named_by_their_first_runs(database: Database) -> None:
    open_account(database, periods=any_of(40))
    charge(database, noise("1/41"), periods=months(*range(0, 60, 2), 59))
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("1/3"), periods=months(60))
    name = refused.value.failures[0].window
    assert name is not None
    assert name.startswith(f"{month(0)}, {month(2)}, ")
    assert name.endswith(" and 20 more")


def test_a_release_to_all_periods_is_compared_with_each_period_where_the_bound_is_too_large(database: Database) -> None:
    """One month has room by the pure sum, and the other at an order; no unit is in both."""
    open_account(database, definition="approximate", epsilon="2", delta="1e-6", periods=any_of(1))
    charge(database, {"type": "geometric", "epsilon": "1.9"}, periods=months(0))
    charge(database, *[noise("0.001")] * 9, periods=months(12))
    charge(database, {"type": "geometric", "epsilon": "0.05"}, periods="all")
    entries_of(database)
    with pytest.raises(BudgetExceeded):
        charge(database, {"type": "geometric", "epsilon": "0.1"}, periods="all")


def test_a_line_counts_each_release_by_the_participation_of_each_account(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any two quarters, above any three months, above two windows by offsets, with an account without periods."""
    time = Clock(monkeypatch)
    open_account(database, "quarterly", periods=any_of(2, "quarter"))
    open_account(database, "agency", parent="quarterly")
    open_account(database, "monthly", parent="quarterly", periods=any_of(3))
    open_account(database, parent="monthly", periods={"calendar": "month", "participation": {"offsets": [0, 1]}})
    above, here = Naive(2), Naive(3)
    charge(database, noise("1/10"), noise("1/20"), periods=months(0, 3, 4))
    charge(database, noise("1/20"), name="agency")
    charge(database, noise("1/20"), name="quarterly", periods={"from": "2026-Q3", "to": "2026-Q4"})
    (reserved,) = reserve(database, noise("1/50"), periods={"from": month(0), "to": month(11)})
    (kept,) = reserve(database, noise("1/100"), periods="all")
    void(database, reserved)
    commit(database, kept)
    reserve(database, noise("1/7"), periods=months(5))
    charge(database, noise("1/30"), name="monthly", periods=months(5, 6))
    here.counted = {
        "a": (Fraction(3, 20), frozenset({0, 3, 4})),
        "b": (Fraction(1, 100), None),
        "c": (Fraction(1, 7), frozenset({5})),
        "d": (Fraction(1, 30), frozenset({5, 6})),
    }
    above.counted = {
        "a": (Fraction(3, 20), frozenset({0, 1})),
        "b": (Fraction(1, 20), None),
        "c": (Fraction(1, 20), frozenset({2, 3})),
        "d": (Fraction(1, 100), None),
        "e": (Fraction(1, 7), frozenset({1})),
        "f": (Fraction(1, 30), frozenset({1, 2})),
    }
    assert left(database, "monthly") == 1 - here.worst
    assert left(database, "quarterly") == 1 - above.worst
    names = ("people", "monthly", "agency", "quarterly")
    for name in names:
        entries_of(database, name)
    time.forward(2)
    charge(database, noise("0.1"), periods=months(5))
    for name in names:
        entries_of(database, name)


def test_offsets_above_any_periods(database: Database) -> None:
    open_account(database, "quarterly", periods=QUARTERS)
    open_account(database, parent="quarterly", periods=any_of(2))

    def refusals(rho: str, number: int) -> list[tuple[str | None, str | None]]:
        with pytest.raises(BudgetExceeded) as refused:
            charge(database, noise(rho), periods=months(number))
        return [(one.account, one.window) for one in refused.value.failures]

    charge(database, noise("0.4"), periods=months(0))
    charge(database, noise("0.4"), periods=months(1))
    assert refusals("0.4", 2) == [("quarterly", "2025-Q4")]
    assert refusals("0.7", 20) == [("people", "2026-01, 2027-09")]
    assert refusals("0.7", 2) == [("people", "2026-01, 2026-03"), ("quarterly", "2025-Q4")]
    charge(database, noise("0.6"), periods=months(20))
    for name in ("people", "quarterly"):
        entries_of(database, name)


class Reads:
    """The number of rows that each reading of windows found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[int] = []
        real = window_rows.read_windows

        def counting(connection: Connection, account_id: int, places: PeriodSet) -> Any:
            rows = real(connection, account_id, places)
            self.found.append(len(rows))
            return rows

        monkeypatch.setattr(window_state, "read_windows", counting)

    def taken(self) -> list[int]:
        found, self.found = self.found, []
        return found


def test_a_charge_reads_the_leading_periods_and_its_own(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(database, periods=any_of(3))
    charge(database, noise("0.01"), periods=months(*range(30)))
    charge(database, noise("0.1"), periods=months(20, 21, 22))
    reads = Reads(monkeypatch)
    charge(database, noise("0.01"), periods=months(5, 6))
    assert reads.taken() == [5]
    (late,) = reserve(database, noise("0.01"), periods=months(7))
    assert reads.taken() == [4]
    void(database, late)
    assert reads.taken() == [4]  # it did not lead
    (leading,) = reserve(database, noise("0.01"), periods=months(20))
    commit(database, leading)
    assert reads.taken() == [3, 3]
    (leading,) = reserve(database, noise("0.01"), periods=months(20))
    void(database, leading)
    assert reads.taken() == [3, 3, 30]
    charge(database, noise("0.01"), periods="all")
    assert reads.taken() == []
    entries_of(database)


def test_an_account_of_any_periods_has_as_many_as_can_be_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_state, "looked_at", lambda _: 3)
    open_account(database, periods=any_of(2))
    charge(database, noise("0.1"), periods=months(1, 2))
    with pytest.raises(Conflict, match="would have more than 3 windows"):
        charge(database, noise("0.1"), periods=months(2, 3, 4))
    charge(database, noise("0.1"), periods=months(2, 3))
    entries_of(database)


def _filled(database: Database) -> None:
    """A line whose periods are of every kind: committed, held, of both, given back, and common."""
    open_account(
        database, "quarterly", definition="approximate", epsilon="9", delta="1e-6", periods=any_of(2, "quarter")
    )
    open_account(database, parent="quarterly", periods=any_of(2), approval_above="0.15")
    charge(database, noise("0.1"), {"type": "geometric", "epsilon": "0.3"}, periods=months(0, 1))
    charge(database, noise("0.01"), periods="all")
    reserve(database, noise("0.1"), periods={"from": month(1), "to": month(4)})
    reserve(database, noise("0.02"), periods="all")
    void(database, reserve(database, noise("0.1"), periods=months(9))[0])
    commit(database, reserve(database, noise("0.1"), periods=months(5))[0])
    (proposed,) = charge(database, noise("0.4"), periods=months(11))
    assert proposed.state == "proposed"
    approve(database, proposed.id)


def test_an_import_has_the_periods_of_the_export(new_database: Any, signer: Signer) -> None:
    database, other = new_database(), new_database()
    _filled(database)
    lines = exported(database, signer)
    rebuild(other, lambda: io.BytesIO(lines), signer.public_key)
    for name in ("people", "quarterly"):
        assert account_of(other, name) == account_of(database, name)
        assert windows_of(other, name) == windows_of(database, name)
        entries_of(other, name)
    charge(other, noise("0.1"), periods=months(1))
    entries_of(other)


_CHANGES = [
    """UPDATE accounts SET period_state = replace(period_state, '"places":[', '"places":[1,')""",
    """UPDATE accounts SET period_state = replace(period_state, '"several"', '"another"')""",
    "UPDATE window_totals SET committed = held, seq = seq + 1",
    "UPDATE window_totals SET releases = releases + 1, seq = seq + 1",
    "DELETE FROM window_totals WHERE place = (SELECT min(place) FROM window_totals)",
]


@pytest.mark.parametrize("change", _CHANGES)
def test_verify_finds_a_changed_period(database: Database, change: str) -> None:
    _filled(database)
    drops = [f"DROP TRIGGER IF EXISTS window_totals_{name}" for name in ("forward",)]
    table = "accounts" if "accounts" in change else "window_totals"
    unprotected(database, table, *(drops if database.kind == "sqlite" else []), change)
    with database.read() as connection:
        verdicts = [verify(connection, name) for name in ("people", "quarterly")]
    assert not all(verdict.valid for verdict in verdicts)


def test_windows_whose_bound_may_be_too_large_are_not_saved(database: Database) -> None:
    open_account(database, periods=any_of(2))
    charge(database, noise("0.1"), periods=months(1, 2))
    account = account_of(database)
    assert account.windows is not None
    with database.read() as connection:
        place = account.windows.leads[0]
        windows = window_state.read_at(connection, account.id, account.windows, PeriodSet(((place, place),)))
        amount = price(DiscreteGaussian(sigma_squared=Fraction(50)), Neighbouring.ADD_REMOVE, ())
        less = windows.charged(account.weights, PeriodSet(((place, place),)), 3, committed=[(amount, -1)])
        assert less.outdated
        assert less.bound == windows.bound
        with pytest.raises(ValueError, match="computed again"):
            window_state.write_state(less)
        again = window_state.lowered(connection, account.id, account.weights, less, windows.present)
    assert (again.bound.rho.finite, again.leads) == (windows.bound.rho.finite - Fraction(1, 100), windows.leads)


def test_a_charge_finds_that_a_leading_period_is_missing(database: Database) -> None:
    open_account(database, periods=any_of(2))
    charge(database, noise("0.1"), periods=months(1, 2))
    unprotected(
        database, "window_totals", "DELETE FROM window_totals WHERE place = (SELECT min(place) FROM window_totals)"
    )
    with pytest.raises(Altered):
        charge(database, noise("0.1"), periods=months(7))


@pytest.mark.parametrize("name", ["people", "quarterly"])
def test_recompute_moves_periods_to_the_right_prices(database: Database, older: pytest.MonkeyPatch, name: str) -> None:
    _filled(database)
    older.undo()
    found, before = recompute(database, name, apply=False), account_of(database, name)
    assert account_of(database, name) == before
    applied = recompute(database, name, apply=True)
    assert (applied.prices, applied.over) == (found.prices, found.over)
    assert applied.prices
    assert account_of(database, name) == applied.account != before
    entries_of(database, name)


def test_a_dry_run_admits_as_a_charge_does(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    open_account(database, periods=any_of(2))
    charge(database, noise("0.5"), periods=months(0))
    reserve(database, noise("0.5"), periods=months(2), hours=1)
    with pytest.raises(BudgetExceeded):
        charges.dry_run(database, prepared(database, noise("0.1"), periods=months(2)))
    charges.dry_run(database, prepared(database, noise("0.5"), periods=months(7)))
    time.forward(2)
    (done,) = charges.dry_run(database, prepared(database, noise("0.3"), periods=months(2, 3)))
    assert done.account.totals.rho.finite == Fraction(8, 10)
    assert [entry.kind for entry in entries_of(database)] == ["account_opened", "committed", "reserved"]


def test_releases_of_a_batch_are_charged_one_after_the_other(database: Database) -> None:
    open_account(database, periods=any_of(2))
    with pytest.raises(BudgetExceeded):
        charge(database, *[noise("0.3")] * 2, periods=months(3, 4))
    assert windows_of(database) == {}
    charge(database, *[noise("0.25")] * 2, periods=months(3, 4))
    assert left(database) == 0
    entries_of(database)
