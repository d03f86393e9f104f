"""Windows of accounts for readers: the one with the largest loss, and those of each period.

Where a unit can be in several periods, whichever they are, they are shown by sums of the largest (P-11), and all
windows are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, func, select

from service.ledger.accounts import account_periods, budgets
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.spending import window_state
from service.ledger.spending.spending import as_plan
from service.ledger.spending.spending_rows import Subplans
from service.ledger.spending.subplans import periods_in
from service.ledger.spending.window_rows import EMPTY, Window
from service.ledger.spending.window_state import WindowState
from service.ledger.storage.tables import WindowTotals as Table
from service.privacy.accounting.capacity import gauge
from service.privacy.accounting.leading_windows import leading, worst_places
from service.privacy.accounting.period_bounds import dominating
from service.privacy.accounting.privacy_filter import spent_of_cap
from service.privacy.accounting.totals import Totals, add_totals
from service.privacy.accounting.windows import WindowTotals, worst
from service.privacy.periods import ALL, Periods, PeriodSet, set_of
from service.privacy.plans import Plan
from service.privacy.plans.tagged import as_replacement
from service.privacy.plans.walking import Priced

_ENDS = select(func.min(Table.place), func.max(Table.place)).where(Table.account_id == bindparam("account"))


@dataclass(frozen=True, slots=True)
class PeriodView:
    """The window with the largest loss of those that hold a period, common totals included.

    Where a unit can be in any periods, the totals are nowhere below those of any unit in the period.

    Attributes:
        window: its periods; of any, those that are worst together with this one.
        committed: the figure of its committed releases, in the budget's definition; None is infinite.
        counted: with held releases.
        account: the account with the totals of this window, and the number of releases that touch it; where a unit can
            be in any periods, a release counts once for each.
    """

    period: int
    window: PeriodSet
    committed: Fraction | None
    counted: Fraction | None
    account: AccountRecord


def worst_window(
    connection: Connection, account: AccountRecord, period: int | None
) -> tuple[PeriodSet | None, AccountRecord]:
    """Return the window with the largest loss in the budget's figure, and the account as that window.

    Args:
        account: with periods; of the present, or with all windows of an earlier moment.
        period: one that the window must hold; None: any.

    Returns:
        None in place of the window where none has more than the releases to all periods. The account has the totals
        of the window, and the number of releases that touch it, as in ``PeriodView``.

    Raises:
        Altered: a row of a window is not as the service wrote it, or one is missing.
    """
    periods, windows = _of(account)
    some = period is not None and windows.several is None
    places = periods.touched(PeriodSet(((period, period),))) if some and period is not None else ALL
    windows = _read(connection, account, windows, places)
    common, totals = windows.common, windows.totals_of(windows.present)
    if windows.several is not None:
        found = leading(account.weights, totals, windows.several)
        including = () if period is None else (period,)
        held = worst_places(account.budget, account.weights, common.totals, found, totals, *including)
        bound = found.together if period is None else found.beside(account.weights, totals.get(period, Totals()))
        window, sums = set_of((place, place) for place in held) if held else None, add_totals(common.totals, bound)
    else:
        worst_one = worst(account.budget, account.weights, periods, WindowTotals(common.totals, totals), period)
        held = () if worst_one.place is None else (worst_one.place,)
        window, sums = None if worst_one.place is None else periods.window_at(worst_one.place), worst_one.totals
    releases = common.releases + sum(windows.present.get(place, EMPTY).releases for place in held)
    return window, replace(account, totals=sums, windows=windows, releases=releases)


def as_worst_window(connection: Connection, account: AccountRecord) -> AccountRecord:
    """Return an account with the totals of the window with the largest loss by its budget.

    The totals of an account with periods are a bound of all windows. Under an (epsilon, delta) budget this bound can be
    above the loss of each window, because each can have another decisive order.

    Returns:
        The account itself where it has no periods or more windows than are looked at, and where a unit can be in
        several periods, whichever.

    Raises:
        Altered: as ``worst_window``.
    """
    windows = account.windows
    if windows is None or windows.several is not None or not windows.are_few(account.weights):
        return account
    return worst_window(connection, account, None)[1]


def fullest_window(connection: Connection, account: AccountRecord) -> tuple[int | None, AccountRecord]:
    """Return the place of the window that has the largest gauge, and the account as that window; the first of several.

    Args:
        account: with periods; of the present.

    Returns:
        None in place of the place where no window has more than the releases to all periods. An account of more
        windows than are looked at is returned as it is: its totals are a bound of all of them. So is one whose units
        are in several periods, whichever: its totals are the sum of the largest.

    Raises:
        Altered: a row of a window is not as the service wrote it, or one is missing.
    """
    _, windows = _of(account)
    if windows.several is not None or not windows.are_few(account.weights):
        return None, account
    windows = _read(connection, account, windows, ALL)
    found: dict[str, tuple[int | None, Totals]] = {
        "": (None, windows.common.totals)
    }  # unlike totals, the first of each
    for place in sorted(windows.present):
        totals = windows.present[place].totals
        found.setdefault(budgets.write_totals(totals), (place, add_totals(windows.common.totals, totals)))

    def used(one: tuple[int | None, Totals]) -> tuple[bool, Fraction]:
        part = gauge(account.budget, account.weights, one[1]).used
        return part is None, part or Fraction(0)

    fullest, totals = max(found.values(), key=used)
    return fullest, replace(account, totals=totals, windows=windows, releases=_releases(windows, fullest))


def _releases(windows: WindowState, place: int | None) -> int:
    """Return the number of releases that touch a window; None: of those to all periods."""
    return windows.common.releases + (0 if place is None else windows.present.get(place, EMPTY).releases)


def touched_periods(connection: Connection, account: AccountRecord) -> tuple[int, int] | None:
    """Return the first and the last period that releases read, but for those to all periods; None if there are none."""
    periods, windows = _of(account)
    if not windows.number:
        return None
    lowest, highest = connection.execute(_ENDS, {"account": account.id}).one()
    return periods.window_at(lowest).ranges[-1][1], highest  # a period p touches the places p - offset


def period_views(connection: Connection, account: AccountRecord, first: int, last: int) -> Iterator[PeriodView]:
    """Yield each period from first to last, in order, with the window of the largest loss that holds it.

    Raises:
        Altered: a row of a window is not as the service wrote it, or one is missing, where all are read.
    """
    periods, windows = _of(account)
    if windows.several is not None:
        yield from _views_of_several(connection, account, first, last)
        return
    places = periods.touched(PeriodSet(((first, last),)))
    windows = _read(connection, account, windows, places)
    known = {place: windows.present.get(place, EMPTY) for place in places.members}
    keys = {place: _key(account, windows, window) for place, window in known.items()}
    for period in range(first, last + 1):
        place = max(periods.touched(PeriodSet(((period, period),))).members, key=keys.__getitem__)
        own = known[place]
        yield _view(account, windows, period, periods.window_at(place), own)


def _views_of_several(connection: Connection, account: AccountRecord, first: int, last: int) -> Iterator[PeriodView]:
    """Yield each period with the worst others, in an account where a unit can be in several."""
    _, windows = _of(account)
    windows, weights, number = _read(connection, account, windows, ALL), account.weights, windows.several or 1
    totals = windows.totals_of(windows.present)
    of_committed = {place: window.committed for place, window in windows.present.items()}
    found, found_committed = leading(weights, totals, number), leading(weights, of_committed, number)
    for period in range(first, last + 1):
        own = windows.present.get(period, EMPTY)
        held = worst_places(account.budget, weights, windows.common.totals, found, totals, period)
        yield _view(
            account,
            windows,
            period,
            set_of((place, place) for place in held),
            Bounds(
                found_committed.beside(weights, own.committed),
                found.beside(weights, own.totals),
                sum(windows.present.get(place, EMPTY).releases for place in held),
            ),
        )


class Bounds(NamedTuple):
    """Totals of a window, or nowhere below those of several, without common ones."""

    committed: Totals
    totals: Totals
    releases: int


def _view(
    account: AccountRecord, windows: WindowState, period: int, window: PeriodSet, own: Window | Bounds
) -> PeriodView:
    totals = add_totals(windows.common.totals, own.totals)
    return PeriodView(
        period,
        window,
        spent_of_cap(account.budget, account.weights, add_totals(windows.common.committed, own.committed)),
        spent_of_cap(account.budget, account.weights, totals),
        replace(account, totals=totals, releases=windows.common.releases + own.releases),
    )


def of_window(account: AccountRecord, subplans: Subplans, window: PeriodSet | None) -> Subplans:
    """Return the subplans of releases that touch a window, by offsets; None: those of releases to all periods."""
    periods, _ = _of(account)
    place = None if window is None else window.ranges[0][0]
    touches: dict[str, bool] = {}  # by text: long lists are read once, whatever number of subplans repeats them
    found: Subplans = Subplans()
    for subplan, count in subplans.items():
        text = periods_in(subplan)
        if text not in touches:
            places = account_periods.touched(periods, text)
            touches[text] = places.everything or (place is not None and place in places)
        if touches[text]:
            found[subplan] = count
    return found


def bound_of_several(
    account: AccountRecord, subplans: Subplans, tag: str | None, period: int | None, *, replaced: bool
) -> Plan:
    """Return a plan with a guarantee nowhere below that of any unit, of an account where one can be in any periods.

    Args:
        subplans: as the account counts them.
        tag: count what carries it alone; None: all.
        period: one that the unit is in; None: any.
        replaced: compare inputs that differ in the value of the tagged attribute, as a cap on the tag does.
    """
    periods, windows = _of(account)
    charged: dict[str, Subplans] = {}
    for subplan, count in subplans.items():
        charged.setdefault(periods_in(subplan), Subplans())[subplan] = count
    releases: list[tuple[PeriodSet, Priced]] = []
    for text, some in charged.items():
        whole = as_plan(some, tag)
        plan = as_replacement(whole, account.neighbouring) if replaced else whole
        releases.append((account_periods.touched(periods, text), plan))
    return dominating(releases, account.neighbouring, windows.several or 1, period)


def _of(account: AccountRecord) -> tuple[Periods, WindowState]:
    if account.periods is None or account.windows is None:
        raise ValueError("expected an account with periods")
    return account.periods, account.windows


def _read(connection: Connection, account: AccountRecord, windows: WindowState, places: PeriodSet) -> WindowState:
    """Return the windows with those at some places, unless all are known, as those of an earlier moment are."""
    if len(windows.present) == windows.number:
        return windows
    return window_state.read_at(connection, account.id, windows, places)


def _key(account: AccountRecord, windows: WindowState, window: Window) -> tuple[bool, Fraction]:
    figure = spent_of_cap(account.budget, account.weights, add_totals(windows.common.totals, window.totals))
    return figure is None, figure or Fraction(0)
