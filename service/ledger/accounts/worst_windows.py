"""Windows of accounts for readers: the one with the largest loss, and those of each period."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from sqlalchemy import Connection, bindparam, func, select

from service.ledger.accounts import account_periods, budgets, window_state
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.spending_rows import Subplans
from service.ledger.accounts.subplans import periods_in
from service.ledger.accounts.window_rows import EMPTY, Window
from service.ledger.accounts.window_state import WindowState
from service.ledger.storage.tables import WindowTotals as Table
from service.privacy.accounting.capacity import gauge
from service.privacy.accounting.privacy_filter import spent_of_cap
from service.privacy.accounting.totals import Totals, add_totals
from service.privacy.accounting.windows import WindowTotals, worst
from service.privacy.periods import ALL, Periods, PeriodSet

_ENDS = select(func.min(Table.place), func.max(Table.place)).where(Table.account_id == bindparam("account"))


@dataclass(frozen=True, slots=True)
class PeriodView:
    """The window with the largest loss of those that hold a period, common totals included.

    Attributes:
        place: of the window.
        committed: the figure of its committed releases, in the budget's definition; None is infinite.
        counted: with held releases.
        account: the account with the totals of this window, and the number of releases that touch it.
    """

    period: int
    place: int
    committed: Fraction | None
    counted: Fraction | None
    account: AccountRecord


def worst_window(
    connection: Connection, account: AccountRecord, period: int | None = None
) -> tuple[int | None, AccountRecord]:
    """Return the place of the window with the largest loss in the budget's figure, and the account as that window.

    Args:
        account: with periods; of the present, or with all windows of an earlier moment.
        period: one that the window must hold; None: any.

    Returns:
        None in place of the place where no window has more than the releases to all periods. The account has the totals
        of the window, and the number of releases that touch it.

    Raises:
        Altered: a row of a window is not as the service wrote it, or one is missing.
    """
    periods, windows = _of(account)
    places = ALL if period is None else periods.touched(PeriodSet(((period, period),)))
    windows = _read(connection, account, windows, places)
    totals = {place: window.totals for place, window in windows.present.items()}
    known = WindowTotals(windows.common.totals, totals)
    found = worst(account.budget, account.weights, periods, known, period)
    place = found.place
    return place, replace(account, totals=found.totals, windows=windows, releases=_releases(windows, place))


def fullest_window(connection: Connection, account: AccountRecord) -> tuple[int | None, AccountRecord]:
    """Return the place of the window that has the largest gauge, and the account as that window; the first of several.

    Args:
        account: with periods; of the present.

    Returns:
        None in place of the place where no window has more than the releases to all periods. An account of more than
        ``LOOKED_AT`` windows is returned as it is: its totals are a bound of all of them.

    Raises:
        Altered: a row of a window is not as the service wrote it, or one is missing.
    """
    _, windows = _of(account)
    if windows.number > window_state.LOOKED_AT:
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
    return lowest + periods.participation.offsets[-1], highest  # a period p touches the places p - offset


def period_views(connection: Connection, account: AccountRecord, first: int, last: int) -> Iterator[PeriodView]:
    """Yield each period from first to last, in order, with the window of the largest loss that holds it.

    Raises:
        Altered: a row of a window is not as the service wrote it.
    """
    periods, windows = _of(account)
    places = periods.touched(PeriodSet(((first, last),)))
    windows = _read(connection, account, windows, places)
    known = {place: windows.present.get(place, EMPTY) for place in places.members}
    keys = {place: _key(account, windows, window) for place, window in known.items()}
    for period in range(first, last + 1):
        place = max(periods.touched(PeriodSet(((period, period),))).members, key=keys.__getitem__)
        own = known[place]
        yield PeriodView(
            period,
            place,
            spent_of_cap(account.budget, account.weights, add_totals(windows.common.committed, own.committed)),
            spent_of_cap(account.budget, account.weights, add_totals(windows.common.totals, own.totals)),
            replace(
                account,
                totals=add_totals(windows.common.totals, own.totals),
                releases=windows.common.releases + own.releases,
            ),
        )


def of_window(account: AccountRecord, subplans: Subplans, place: int | None) -> Subplans:
    """Return the subplans of releases that touch a window; None: those of releases to all periods."""
    periods, _ = _of(account)
    found: Subplans = Subplans()
    for subplan, count in subplans.items():
        places = account_periods.stated(periods, periods_in(subplan)).places
        if places.everything or (place is not None and place in places):
            found[subplan] = count
    return found


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
