"""Accounts with periods: every charge, settlement and change against sets of periods and plain sums."""

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from service.errors import Altered, BudgetExceeded, Conflict, InvalidInput
from service.ledger.accounts import account_periods, accounts
from service.ledger.accounts.budgets import read_price
from service.ledger.descriptions.registry import largest_budget
from service.ledger.installation.signing import Signer
from service.ledger.journal.entries import PriceChanged, Registration, Voided, read_text
from service.ledger.journal.entry_texts import PriceKey, price_of
from service.ledger.releases import charges
from service.ledger.spending import window_rows, window_state
from service.ledger.spending.window_rows import Window
from service.ledger.storage.database import Database
from service.ledger.verification.imports import rebuild
from service.ledger.verification.recompute import recompute
from service.ledger.verification.verify import verify
from service.privacy.accounting.privacy_filter import remaining, spent_of_cap
from service.privacy.periods import ALL, read_period
from tests.ledger.charging import (
    account_of,
    approve,
    change_account,
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
from tests.ledger.writing import stored, unprotected

__all__ = ["older"]  # a fixture

YEAR = {"calendar": "month", "participation": {"offsets": [0, 1, 2]}}
PANEL = {"calendar": "month", "participation": {"offsets": [0, 2, 3]}}
QUARTERS = {"calendar": "quarter", "participation": {"offsets": [0, 1]}}


def noise(rho: str) -> dict[str, Any]:
    return {"type": "discrete_gaussian", "rho": rho}


def month(number: int) -> str:
    """Return a month, counted from January 2026, which is 0."""
    return f"{2026 + number // 12}-{number % 12 + 1:02d}"


def months(*numbers: int) -> dict[str, Any]:
    return {"list": [month(number) for number in numbers]}


def windows_of(database: Database, name: str = "people") -> dict[int, Window]:
    """The windows of an account by the month at which they begin."""
    account = account_of(database, name)
    with database.read() as connection:
        found = window_rows.read_windows(connection, account.id, ALL)
    assert account.periods is not None
    calendar = account.periods.calendar
    first = read_period(calendar, {"month": "2026-01", "quarter": "2026-Q1"}[calendar], "")
    return {place - first: window for place, window in found.items()}


@dataclass
class Naive:
    """Releases with the months that they read, and the windows as sets of months."""

    offsets: tuple[int, ...]
    cap: Fraction
    counted: dict[str, tuple[Fraction, frozenset[int] | None]] = field(default_factory=dict)

    def spent(self, place: int) -> Fraction:
        window = {place + offset for offset in self.offsets}
        return sum((rho for rho, read in self.counted.values() if read is None or read & window), Fraction(0))

    @property
    def worst(self) -> Fraction:
        common = sum((rho for rho, read in self.counted.values() if read is None), Fraction(0))
        return max([common, *(self.spent(place) for place in range(-20, 40))])

    def fits(self, rho: Fraction, read: frozenset[int] | None) -> bool:
        self.counted["new"] = rho, read
        fits = self.worst <= self.cap
        del self.counted["new"]
        return fits

    def check(self, database: Database, name: str = "people") -> None:
        assert left(database, name) == self.cap - self.worst
        found = windows_of(database, name)
        for place in range(-20, 40):
            window = {place + offset for offset in self.offsets}
            own = [rho for rho, read in self.counted.values() if read is not None and read & window]
            totals = found.get(place, Window())
            assert (totals.totals.rho.finite, totals.releases) == (sum(own), len(own))
        assert set(found).issubset(range(-20, 40))


_OFFSETS = [(0,), (0, 1, 2), (0, 2, 3), (0, 3)]


def _read(random: Random) -> tuple[frozenset[int] | None, Any]:
    if random.random() < 0.2:
        return None, "all"
    if random.random() < 0.5:
        first, last = sorted(random.choices(range(12), k=2))
        return frozenset(range(first, last + 1)), {"from": month(first), "to": month(last)}
    numbers = random.sample(range(12), random.randrange(1, 5))
    return frozenset(numbers), months(*numbers)


@pytest.mark.parametrize("offsets", _OFFSETS)
def test_random_charges_and_settlements_agree_with_sets_of_months(
    database: Database, monkeypatch: pytest.MonkeyPatch, offsets: tuple[int, ...]
) -> None:
    time, random = Clock(monkeypatch), Random(str(offsets))
    open_account(database, periods={"calendar": "month", "participation": {"offsets": list(offsets)}})
    naive, held = Naive(offsets, Fraction(1)), list[str]()
    for _ in range(60):
        what = random.random()
        if what < 0.55 or not held:
            rho, (read, stated) = Fraction(random.randrange(1, 7), 20), _read(random)
            fits, reserves = naive.fits(rho, read), random.random() < 0.5
            try:
                if reserves:
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


def test_a_line_is_charged_in_the_calendar_of_each_of_its_accounts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month's release is charged to its quarter, to all of an account without periods, and to every window above."""
    time = Clock(monkeypatch)
    open_account(database, "quarterly", periods=QUARTERS)
    open_account(database, "agency", parent="quarterly")
    open_account(database, parent="agency", periods=PANEL)
    above, here = Naive((0, 1), Fraction(1)), Naive((0, 2, 3), Fraction(1))
    charge(database, noise("1/10"), noise("1/20"), periods=months(0, 3, 4))
    charge(database, noise("1/20"), name="agency")
    charge(database, noise("1/20"), name="quarterly", periods={"from": "2026-Q3", "to": "2026-Q4"})
    (reserved,) = reserve(database, noise("1/10"), periods={"from": month(0), "to": month(11)})
    (kept,) = reserve(database, noise("1/100"), periods="all")
    void(database, reserved)
    commit(database, kept)
    reserve(database, noise("1/7"), periods=months(5))
    here.counted = {
        "a": (Fraction(1, 10), frozenset({0, 3, 4})),
        "a2": (Fraction(1, 20), frozenset({0, 3, 4})),
        "b": (Fraction(1, 100), None),
        "c": (Fraction(1, 7), frozenset({5})),
    }
    above.counted = {
        "a": (Fraction(1, 10), frozenset({0, 1})),
        "a2": (Fraction(1, 20), frozenset({0, 1})),
        "b": (Fraction(1, 20), None),
        "c": (Fraction(1, 20), frozenset({2, 3})),
        "d": (Fraction(1, 100), None),
        "e": (Fraction(1, 7), frozenset({1})),
    }
    here.check(database)
    above.check(database, "quarterly")
    assert left(database, "agency") == 1 - Fraction(3, 20) - Fraction(1, 20) - Fraction(1, 100) - Fraction(1, 7)
    for name in ("people", "agency", "quarterly"):
        entries_of(database, name)
    time.forward(2)
    charge(database, noise("0.3"), periods=months(5))
    for name in ("people", "agency", "quarterly"):
        entries_of(database, name)


@pytest.mark.parametrize("periods", [months(1), "all"])
def test_a_refusal_names_the_window_that_lacks_most(database: Database, periods: Any) -> None:
    open_account(database, periods=PANEL)
    charge(database, noise("0.5"), periods=months(4))
    charge(database, noise("0.25"), periods=months(1))
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("0.4"), periods=periods)
    failure = refused.value.failures[0]  # windows 1 and 4 - 3 hold both, window -2 the month 1 alone
    assert (failure.window, str(failure.requested), str(failure.remaining)) == (month(1), "2/5", "1/4")
    assert refused.value.noise_multiplier() == pytest.approx((0.4 / 0.25) ** 0.5, rel=1e-5)


def test_a_release_to_all_periods_is_compared_with_each_window_where_their_maximum_is_too_large(
    database: Database,
) -> None:
    """One window has room by the pure sum, and the other at an order."""
    open_account(database, definition="approximate", epsilon="2", delta="1e-6", periods=YEAR)
    charge(database, {"type": "geometric", "epsilon": "1.9"}, periods=months(0))
    charge(database, *[{"type": "discrete_gaussian", "rho": "0.001"}] * 9, periods=months(12))
    before = account_of(database)
    charge(database, {"type": "geometric", "epsilon": "0.05"}, periods="all")
    assert account_of(database).releases == before.releases + 1
    entries_of(database)
    with pytest.raises(BudgetExceeded):
        charge(database, {"type": "geometric", "epsilon": "0.1"}, periods="all")


def test_releases_of_a_batch_are_charged_one_after_the_other(database: Database) -> None:
    open_account(database, periods=YEAR)
    with pytest.raises(BudgetExceeded):
        charge(database, *[noise("0.3")] * 4, periods=months(3))
    assert windows_of(database) == {}
    charge(database, *[noise("0.3")] * 3, periods=months(3))
    assert {place: window.releases for place, window in windows_of(database).items()} == {1: 3, 2: 3, 3: 3}
    entries_of(database)


def test_a_window_without_releases_begins_at_the_common_total(database: Database) -> None:
    open_account(database, periods=YEAR)
    charge(database, noise("0.8"), periods="all")
    with pytest.raises(BudgetExceeded):
        charge(database, noise("0.3"), periods=months(40))
    charge(database, noise("0.2"), periods=months(40))
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("0.1"), periods="all")
    assert refused.value.failures[0].window == month(38)


@pytest.mark.parametrize(
    ("periods", "stated", "pointer"),
    [
        (None, "all", "/periods"),
        (YEAR, None, "/periods"),
        (YEAR, "2026-01", "/periods"),
        (YEAR, {"list": []}, "/periods"),
        (YEAR, {"from": month(2), "to": month(1)}, "/periods/to"),
        (YEAR, {"list": [month(1), "2026-Q1"]}, "/periods/list/1"),
        (YEAR, {"from": "1000-01", "to": "9999-12"}, "/periods"),
    ],
)
def test_periods_that_an_account_cannot_charge_are_refused(
    database: Database, periods: Any, stated: Any, pointer: str
) -> None:
    open_account(database, periods=periods)
    with pytest.raises(InvalidInput) as refused:
        charge(database, noise("0.1"), periods=stated)
    (fault,) = refused.value.faults
    assert fault.pointer == pointer
    assert fault.detail.startswith("expected")
    assert len(entries_of(database)) == 1


@pytest.mark.parametrize(("above", "below"), list(product(["month", "quarter", "index"], ["week", "index", "year"])))
def test_only_a_calendar_that_nests_is_under_another(database: Database, above: str, below: str) -> None:
    def by(calendar: str) -> dict[str, Any]:
        return {"calendar": calendar, "participation": {"offsets": [0]}}

    open_account(database, "agency", periods=by(above))
    open_account(database, "programme", parent="agency")
    if above == below:
        open_account(database, parent="programme", periods=by(below))
        return
    with pytest.raises(InvalidInput) as refused:
        open_account(database, parent="programme", periods=by(below))
    assert refused.value.faults[0].pointer == "/periods/calendar"


def _filled(database: Database) -> None:
    """A line with a window of every kind: committed, held, of both, given back, and common totals."""
    open_account(database, "quarterly", definition="approximate", epsilon="9", delta="1e-6", periods=QUARTERS)
    open_account(database, parent="quarterly", periods=PANEL, approval_above="0.15")
    charge(database, noise("0.1"), {"type": "geometric", "epsilon": "0.3"}, periods=months(0, 1))
    charge(database, noise("0.01"), periods="all")
    reserve(database, noise("0.1"), periods={"from": month(1), "to": month(4)})
    reserve(database, noise("0.02"), periods="all")
    void(database, reserve(database, noise("0.1"), periods=months(9))[0])
    commit(database, reserve(database, noise("0.1"), periods=months(5))[0])
    (proposed,) = charge(database, noise("0.4"), periods=months(11))
    assert proposed.state == "proposed"
    approve(database, proposed.id)
    charge(database, noise("0.35"), periods=months(20))  # it stays proposed
    change_account(database, "quarterly", account_of(database, "quarterly").budget)


def test_an_import_has_the_windows_of_the_export(new_database: Any, signer: Signer) -> None:
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
    ("window_totals", "UPDATE window_totals SET committed = held, seq = seq + 1"),
    ("window_totals", "UPDATE window_totals SET releases = releases + 1, seq = seq + 1"),
    ("window_totals", "UPDATE window_totals SET seq = seq + 1"),
    ("window_totals", "UPDATE window_totals SET seal = 'another', seq = seq + 1"),
    ("window_totals", "DELETE FROM window_totals WHERE place = (SELECT min(place) FROM window_totals)"),
    (
        "window_totals",
        "INSERT INTO window_totals SELECT account_id, place + 99, committed, held, releases, seq, seal"
        " FROM window_totals WHERE place > 24000",
    ),
    ("holds", "UPDATE holds SET periods = '\"all\"'"),
    ("holds", "UPDATE holds SET periods = NULL"),
    ("releases", "UPDATE releases SET periods = NULL"),
    ("releases", """UPDATE releases SET periods = '{"from":"2026-01","to":"2026-01"}'"""),
    ("accounts", "UPDATE accounts SET periods = NULL"),
    ("accounts", "UPDATE accounts SET period_state = NULL"),
    ("accounts", "UPDATE accounts SET period_state = replace(period_state, 'number', 'numbers')"),
]


@pytest.mark.parametrize(("table", "change"), _CHANGES)
def test_verify_finds_what_was_changed(database: Database, table: str, change: str) -> None:
    _filled(database)
    drops = [f"DROP TRIGGER IF EXISTS {table}_{name}" for name in ("forward",)]
    unprotected(database, table, *(drops if database.kind == "sqlite" else []), change)
    with database.read() as connection:
        verdicts = [verify(connection, name) for name in ("people", "quarterly")]
    assert not all(verdict.valid for verdict in verdicts)


def test_a_window_that_was_put_back_is_found_by_whatever_reads_all(database: Database) -> None:
    """Each row has an authentic seal, of an earlier moment; so has the row of the account."""
    open_account(database, definition="approximate", epsilon="2", delta="1e-6", periods=YEAR)
    charge(database, {"type": "geometric", "epsilon": "1.2"}, periods=months(0))
    with database.read() as connection:
        rows = [stored(row) for row in connection.execute(text("SELECT * FROM window_totals")).all()]
    charge(database, {"type": "geometric", "epsilon": "0.7"}, periods=months(0))
    for row in rows:
        columns = ", ".join(f"{name} = :{name}" for name in row)
        unprotected(
            database,
            "window_totals",
            *(["DROP TRIGGER IF EXISTS window_totals_forward"] if database.kind == "sqlite" else []),
            f"UPDATE window_totals SET {columns} WHERE place = :place",
            **row,
        )
    with pytest.raises(Altered):
        charge(database, {"type": "geometric", "epsilon": "0.7"}, periods="all")
    with database.read() as connection:
        assert not verify(connection, "people").valid


@pytest.mark.parametrize("name", ["people", "quarterly"])
def test_recompute_moves_windows_to_the_right_prices(database: Database, older: pytest.MonkeyPatch, name: str) -> None:
    _filled(database)
    older.undo()
    found, before = recompute(database, name, apply=False), account_of(database, name)
    assert account_of(database, name) == before
    applied = recompute(database, name, apply=True)
    assert (applied.prices, applied.over) == (found.prices, found.over)
    assert len(applied.prices) == 8
    assert account_of(database, name) == applied.account
    entries_of(database, name)
    for place, window in windows_of(database, name).items():
        rho = sum(read_price(price_of(new)).rho or 0 for new in _prices_at(database, name, place))
        assert window.totals.rho.finite == rho


def _prices_at(database: Database, name: str, place: int) -> list[PriceKey]:
    """The last price of each present release that touches the window, from the texts of the journal."""
    account, prices = account_of(database, name), dict[str, tuple[PriceKey, str]]()
    assert account.periods is not None
    calendar = account.periods.calendar
    first = read_period(calendar, {"month": "2026-01", "quarter": "2026-Q1"}[calendar], "")
    for entry in entries_of(database, name):
        content = read_text(entry.body).content
        if entry.release_id is not None and isinstance(content, Registration | PriceChanged):
            prices[entry.release_id] = content.price, content.periods or ""
        elif isinstance(content, Voided):
            prices.pop(entry.release_id or "")
    return [
        price
        for price, periods in prices.values()
        if first + place in set(account_periods.stated(account.periods, periods).places.members)
    ]


def test_an_account_with_very_many_windows_keeps_an_upper_bound(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A void leaves the maximum as it is: nothing is admitted that would not fit, and each window keeps its room."""
    monkeypatch.setattr(window_state, "looked_at", lambda _: 2)
    open_account(database, periods={"calendar": "month", "participation": {"offsets": [0]}})
    charge(database, noise("0.2"), periods=months(1, 2, 3))
    void(database, reserve(database, noise("0.7"), periods=months(1))[0])
    assert left(database) == Fraction(1, 10)
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("0.2"), periods="all")
    assert refused.value.failures[0].window is None
    charge(database, noise("0.8"), periods=months(1))
    with database.read() as connection:
        assert verify(connection, "people").valid
    monkeypatch.setattr(window_state, "looked_at", lambda _: 20_000)
    with database.read() as connection:
        assert verify(connection, "people").valid, "the window of the last charge attains it"


def test_an_account_has_at_most_so_many_windows(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_state, "MOST_WINDOWS", 3)
    open_account(database, periods={"calendar": "month", "participation": {"offsets": [0]}})
    charge(database, noise("0.1"), periods=months(1, 2))
    with pytest.raises(Conflict, match="would have more than 3 windows"):
        charge(database, noise("0.1"), periods=months(2, 3, 4))
    charge(database, noise("0.1"), periods=months(2, 3))
    entries_of(database)


def test_simultaneous_charges_fill_a_window_exactly(database: Database) -> None:
    """Each window takes ten of 0.1, of those to it and those to all periods together."""
    open_account(database, periods=YEAR)

    def one(number: int) -> bool:
        try:
            charge(database, noise("0.1"), periods="all" if number % 4 == 0 else months(7 + number % 2))
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        admitted = sum(threads.map(one, range(24)))
    assert left(database) == 0
    assert admitted == account_of(database).releases == 10  # the windows 6 and 7 hold both months
    entries_of(database)


def test_a_dry_run_admits_as_a_charge_does(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    open_account(database, periods=PANEL)
    charge(database, noise("0.5"), periods=months(0))
    reserve(database, noise("0.5"), periods=months(2), hours=1)
    with pytest.raises(BudgetExceeded):
        charges.dry_run(database, prepared(database, noise("0.1"), periods="all"))
    time.forward(2)
    (done,) = charges.dry_run(database, prepared(database, noise("0.1"), periods="all"))
    assert remaining(done.account.budget, done.account.weights, done.account.totals) == Fraction(4, 10)
    assert [entry.kind for entry in entries_of(database)] == ["account_opened", "committed", "reserved"]


def test_a_bound_above_every_window_is_not_taken_for_the_loss(database: Database) -> None:
    """Different orders are decisive in two windows, so that the bound of both is above the budget."""
    budget = {"definition": "approximate", "epsilon": "1", "delta": "1e-6"}
    waves = {"calendar": "index", "participation": {"offsets": [0]}}
    open_account(database, **budget, periods=waves)
    pure = {"type": "geometric", "epsilon": "0.9"}
    gaussian = {"type": "discrete_gaussian", "rho": "0.015"}
    charge(database, pure, periods={"list": [1]})
    charge(database, gaussian, periods={"list": [2]})
    account = account_of(database)
    bound = spent_of_cap(account.budget, account.weights, account.totals)
    assert bound is not None
    assert bound > 1
    assert recompute(database, "people", apply=False).over == []
    assert recompute(database, "people", apply=True).over == []
    with database.read() as connection:
        assert largest_budget(connection, accounts.read_account(connection, "people")) == account.budget
    changed = change_account(database, "people", replace(account.budget, cap=Fraction(101, 100))).account
    assert changed.budget.cap == Fraction(101, 100)
    with pytest.raises(BudgetExceeded):
        change_account(database, "people", replace(account.budget, cap=Fraction(1, 2)))
