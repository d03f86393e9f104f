"""The capacity of a line of accounts: how often a plan could still be registered, found without a lock or an entry."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from sqlalchemy import Connection

from service.ledger.accounts import budgets, lines
from service.ledger.accounts.account_periods import ChargedPeriods
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.lines import Line
from service.ledger.releases import admission
from service.ledger.releases.admission import AccountCharge, Limit
from service.ledger.releases.preparation import Prepared
from service.ledger.releases.settlement import without_due_reservations
from service.ledger.releases.several_capacity import SeveralPeriods
from service.ledger.spending.window_state import WindowState, read_at
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.privacy.accounting.capacity import (
    MOST_COUNTED,
    BudgetCharge,
    around_estimate,
    fitting,
    fullest,
    gauge,
    share_alone,
)
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.totals import Totals, add_price, add_totals
from service.privacy.periods import Periods, PeriodSet


class Undecided(Exception):
    """Signal that estimated prices do not decide a capacity; the exact ones do."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A limit and the name of its cap that one more release would not fit.

    The limit of an account with periods is that of the window which a refusal would name.
    """

    limit: Limit
    cap: str

    @property
    def names(self) -> tuple[str | None, ...]:
        """Return all that an answer says of it."""
        return self.limit.account, self.limit.tag, self.limit.window, self.cap


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of releases of one plan that an account and those above it still admit.

    Attributes:
        fits: their number, at most ``MOST_COUNTED``.
        stop: the cap that the next one would not fit; None where at least one more than ``MOST_COUNTED`` fit.
        share: the part of the account's own budget that each takes, on the scale of the gauge; None is infinite.
        used: the used part of that budget; with periods, the largest of the windows that the releases touch.
        used_after_one: the used part after one of them, likewise.
    """

    account: AccountRecord
    fits: int
    stop: Stop | None
    share: Fraction | None
    used: Fraction | None
    used_after_one: Fraction | None


class _Bound(NamedTuple):
    """A limit of a line, with everything that must admit the releases.

    Attributes:
        before: the totals of each window that a release touches, equal ones once; without periods, those of the limit.
            Where units are in any periods, each is the sum of a period and the worst others.
        places: of these windows; None: the limit is of no window.
        several: the releases, where they read some periods and units are in any: counted by trials; else None.
    """

    account: AccountRecord
    limit: Limit
    before: Sequence[Totals]
    places: PeriodSet | None = None
    several: SeveralPeriods | None = None

    @property
    def after_one(self) -> Sequence[Totals]:
        """The totals of each window after one release."""
        if self.several is not None:
            return self.several.totals_after(1)
        return [add_price(one, self.limit.amount) for one in self.before]


class _Count(NamedTuple):
    """The number of releases that fit, and what stops the next one."""

    number: int
    stop: Stop | None

    @property
    def names(self) -> tuple[object, ...]:
        """Return all that an answer says of it."""
        return (self.number,) if self.stop is None else (self.number, *self.stop.names)


def present_line(
    database: Database, line: Line, charged: Sequence[ChargedPeriods | None] | None = None
) -> list[AccountRecord]:
    """Return the accounts of a line, root first, without overdue reservations; nothing is locked or written.

    Args:
        charged: the periods of a release in each account. The windows that it touches are read: of releases to all
            periods, all windows of an account that has few enough. None: no windows are read.

    Raises:
        NotFound: the database was replaced by one in which they are not this line.
        Altered: a row of a window is not as the service wrote it.
    """
    at = clock.now()
    with database.read() as connection:
        found = [without_due_reservations(connection, account, at) for account in lines.read_line(connection, line)]
        if charged is None:
            return found
        asked = zip(found, charged, strict=True)
        return [_with_windows(connection, account, one, len(found)) for account, one in asked]


def _with_windows(
    connection: Connection, account: AccountRecord, charged: ChargedPeriods | None, depth: int
) -> AccountRecord:
    windows = account.windows
    if windows is None or charged is None:
        return account
    everything = charged.places.everything
    if everything and not windows.are_few(account.weights, depth):  # as admission looks at them
        return account
    windows = replace(windows, compared=everything)
    return replace(account, windows=read_at(connection, account.id, windows, charged.places))


def capacity(line: Sequence[AccountRecord], release: Prepared, *, estimated: bool = False) -> Capacity:
    """Count how often a release could be registered, one after the other, as ``charge`` would admit it.

    Args:
        line: root first, with the windows that the release touches.
        release: of any name; its plan, its prices and its periods are what counts.
        estimated: its prices are those of ``estimate_price``.

    Raises:
        AccountClosed: an account of the line takes no releases.
        Conflict: an account of the line would have too many windows.
        Undecided: with exact prices another number may fit.
    """
    admission.require_line(line, [release])
    held = admission.first_state(line, release) != "committed"
    bounds = _bounds_of(line, release, admission.charges_of(line, release, held=held))
    count = _counted(bounds, [bound.limit.amount for bound in bounds])
    if estimated:
        if any(bound.several is not None for bound in bounds):
            raise Undecided  # trials round sums, of which the bounds of an estimate take no account
        around = zip(*(around_estimate(bound.limit.amount) for bound in bounds), strict=True)
        if any(_counted(bounds, amounts).names != count.names for amounts in around):
            raise Undecided
    own = bounds[0]
    return Capacity(
        account=line[-1],
        fits=count.number,
        stop=count.stop,
        share=_share(own),
        used=_used(own.limit, own.before),
        used_after_one=_used(own.limit, own.after_one),
    )


def _bounds_of(line: Sequence[AccountRecord], release: Prepared, charges: Sequence[AccountCharge]) -> list[_Bound]:
    """Return all that must admit a release, in the order in which refusals name it: its own account first."""
    bounds: list[_Bound] = []
    rows = zip(line, charges, release.prices, release.periods, strict=True)
    for account, charge, asked, periods in reversed(list(rows)):
        if account.windows is None or account.periods is None or periods is None:
            bounds += [_Bound(account, limit, (limit.before,)) for limit in charge.limits]
            continue
        bounds.append(_bound_of_windows(account, account.periods, account.windows, charge, asked, periods.places))
        bounds += [_Bound(account, cap, (cap.before,)) for cap in charge.limits[1:]]
    return bounds


def _bound_of_windows(
    account: AccountRecord,
    periods: Periods,
    windows: WindowState,
    charge: AccountCharge,
    asked: Price,
    places: PeriodSet,
) -> _Bound:
    amount, limit = charge.amount, charge.limits[0]
    if periods.several is not None and not places.everything:
        several = SeveralPeriods(account, periods, windows, places, amount, exact=amount == asked)
        return _Bound(account, limit, several.totals_after(0), places, several)
    found, most = admission.touched_totals(account, windows, places, amount)
    if periods.several is not None and windows.compared:
        found = windows.sums(account.weights, windows.present)
    unlike = {budgets.write_totals(one): one for one in found.values()} or {"": most or Totals()}
    return _Bound(account, limit, [add_totals(windows.common.totals, one) for one in unlike.values()], places)


def _counted(bounds: Sequence[_Bound], amounts: Sequence[Price]) -> _Count:
    """Count the releases of these amounts that every window of every account admits (C-7, C-9)."""
    most, found = MOST_COUNTED + 1, dict[int, tuple[int, str]]()
    for place in sorted(range(len(bounds)), key=lambda place: bounds[place].several is not None):  # trials last
        found[place] = _fitting(bounds[place], amounts[place], most)
        most = min(most, found[place][0] + 1)  # equal numbers must be told from larger ones: the first bound stops
    number, place = min((number, place) for place, (number, _) in found.items())
    if number > MOST_COUNTED:
        return _Count(MOST_COUNTED, None)
    return _Count(number, _stop(bounds[place], amounts[place], number, found[place][1]))


def _fitting(bound: _Bound, amount: Price, most: int) -> tuple[int, str]:
    """Return how many of the amounts one bound admits, and the cap that stops the next; of trials, without it.

    The number is larger than ``MOST_COUNTED`` if more fit. Trials find no larger one than ``most``.
    """
    if bound.several is not None:
        return bound.several.count(most), ""
    budget, weights = bound.limit.budget, bound.limit.weights
    number, stop = fitting([BudgetCharge(budget, weights, before, amount) for before in bound.before])
    return (number + 1, "") if stop is None else (number, stop[1])


def _stop(bound: _Bound, amount: Price, number: int, cap: str) -> Stop:
    """Return what refuses one more release after a number of them."""
    account, places = bound.account, bound.places
    if bound.several is not None:
        limit = bound.several.limit_after(number)
    elif places is not None and account.periods is not None and account.windows is not None:
        limit = admission.next_window_limit(account, account.periods, account.windows, places, amount, earlier=number)
    else:
        return Stop(bound.limit, cap)
    return Stop(limit, limit.shortfalls[0].cap)


def _share(bound: _Bound) -> Fraction | None:
    """Return the part of a budget that one release takes in an unused account; None is infinite."""
    limit = bound.limit
    if bound.several is not None:
        return _used(limit, [bound.several.sum_alone()])
    return share_alone(limit.budget, limit.weights, limit.amount)


def _used(limit: Limit, totals: Sequence[Totals]) -> Fraction | None:
    """Return the largest gauge of some totals."""
    return fullest(gauge(limit.budget, limit.weights, one) for one in totals).used
