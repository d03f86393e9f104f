"""Admission of a release: the limits that it must fit in a line of accounts, and what it adds to each account.

Charges, dry runs, refusals and the search for fitting noise all ask here. So a further kind of limit is added in
``charges_of`` alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from sqlalchemy import Connection

from service.errors import AccountClosed, Conflict, Overrun, Unavailable
from service.ledger.accounts import accounts
from service.ledger.accounts.account_periods import name_of
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import write_price
from service.ledger.accounts.caps import Cap
from service.ledger.journal.charge_sums import CapPrices
from service.ledger.journal.entry_texts import price_key_of
from service.ledger.releases.preparation import Prepared
from service.ledger.releases.reservation_rows import State
from service.ledger.spending.window_state import WindowState, read_at
from service.privacy.accounting.leading_windows import decisive_windows, leading, worst_places
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Budget, Shortfall, Weights, shortfalls, spent_alone
from service.privacy.accounting.totals import Totals, add_price, add_prices, price_as_charged
from service.privacy.accounting.windows import decisive_window, price_as_charged_to_windows
from service.privacy.periods import ALL, Periods, PeriodSet, set_of, write_period


@dataclass(frozen=True)
class Limit:
    """A budget that a release must fit: that of an account, or of a part of one.

    Attributes:
        account: the account's name.
        before: the totals of the account, or of the part, before the release.
        amount: the charge, as ``price_as_charged`` makes it for these totals.
        tag: of a budget that caps one tag; None: it caps all.
        window: the name of the window that the totals are of; None: the account has no windows.
        raised: the totals after the release, where it counts more than once, as in several periods of one unit; None:
            it counts once.
    """

    account: str
    budget: Budget
    weights: Weights
    before: Totals
    amount: Price
    tag: str | None = None
    window: str | None = None
    raised: Totals | None = None

    @cached_property
    def after(self) -> Totals:
        """The totals after the release."""
        return add_price(self.before, self.amount) if self.raised is None else self.raised

    @cached_property
    def shortfalls(self) -> list[Shortfall]:
        """The caps of the budget that the release does not fit."""
        return shortfalls(self.budget, self.weights, self.before, self.after)


class AccountCharge(NamedTuple):
    """The charge of a release to one account of its line.

    Attributes:
        amount: the price that the account's journal states.
        totals: those of the account after the charge.
        limits: the budgets that it must fit.
        caps: the account's caps on tags after the charge.
        windows: those of the account after the charge; None: it has no periods.
    """

    amount: Price
    totals: Totals
    limits: Sequence[Limit]
    caps: tuple[Cap, ...] = ()
    windows: WindowState | None = None

    @property
    def cap_prices(self) -> CapPrices:
        """The prices that the account's journal states under its caps."""
        return tuple(
            (limit.tag, price_key_of(write_price(limit.amount))) for limit in self.limits if limit.tag is not None
        )


def require_line(line: Sequence[AccountRecord], releases: Sequence[Prepared]) -> None:
    """Refuse releases that were prepared for another line or other caps, and a line with a closed account.

    Raises:
        AccountClosed: an account of the line takes no releases.
        Unavailable: caps of the line were set since a release was prepared.
        ValueError: a release was prepared for another account.
    """
    account_ids = tuple(account.id for account in line)
    if any(prepared.line.ids != account_ids for prepared in releases):
        raise ValueError(f"expected releases that were prepared for {line[-1].name}")
    for account in reversed(line):
        if account.state == "closed":
            raise AccountClosed(account.name)
    for prepared in releases:
        if not all(one.are_of(account.caps) for one, account in zip(prepared.caps, line, strict=True)):
            raise Unavailable("a cap was set while the release was priced", retry_after=1)


def first_state(line: Sequence[AccountRecord], prepared: Prepared) -> State:
    """Return the release's first state; it is proposed if some account of the line asks for approval."""
    if asking_accounts(line, prepared):
        return "proposed"
    return "committed" if prepared.reserve_for is None else "reserved"


def asking_accounts(line: Sequence[AccountRecord], prepared: Prepared) -> tuple[str, ...]:
    """Return the names of the accounts of a line that ask other persons to approve a release, root first."""
    asked = zip(line, prepared.prices, strict=True)
    return tuple(account.name for account, price in asked if asks_approval(account, price))


def asks_approval(account: AccountRecord, asked: Price) -> bool:
    """Return whether an account asks other persons to approve a release of this price."""
    if account.approval_above is None:
        return False
    size = spent_alone(account.budget, account.weights, asked)
    return size is None or size > account.approval_above


def charges_of(line: Sequence[AccountRecord], prepared: Prepared, *, held: bool) -> list[AccountCharge]:
    """Return the charge of a release to each account of its line, admitted or not.

    Args:
        line: root first, in the state to charge.
        held: the charge can be taken away again.

    Returns:
        One for each account, root first.
    """
    accounts_asked = zip(line, prepared.prices, prepared.caps, prepared.periods, strict=True)
    several = sum(account.windows is not None and account.windows.several is not None for account in line)
    return [
        _charge_to(account, asked, caps.prices, held=held)
        if periods is None or account.periods is None or account.windows is None
        else _charge_to_windows(
            account, account.periods, account.windows, asked, caps.prices, periods.places, held=held, several=several
        )
        for account, asked, caps, periods in accounts_asked
    ]


def charge_of_allotment(account: AccountRecord, asked: Price, under_caps: Mapping[str, Price]) -> AccountCharge:
    """Return the charge of an allotment to an account, admitted or not; it can be taken away again.

    Args:
        account: without the allotment's present amount; of windows, those that ``with_all_windows`` reads.
        asked: the price of the allotment's mechanism.
        under_caps: its price under each of the account's caps.
    """
    if account.periods is None or account.windows is None:
        return _charge_to(account, asked, under_caps, held=True)
    return _charge_to_windows(
        account, account.periods, account.windows, asked, under_caps, ALL, held=True, of_release=False
    )


def _charge_to(account: AccountRecord, asked: Price, under_caps: Mapping[str, Price], *, held: bool) -> AccountCharge:
    amount = price_as_charged(account.totals, asked, held=held)
    own = Limit(account.name, account.budget, account.weights, account.totals, amount)
    limits, caps = _charge_to_caps(account, under_caps, held=held)
    return AccountCharge(amount, own.after, (own, *limits), caps)


def _charge_to_caps(
    account: AccountRecord, under_caps: Mapping[str, Price], *, held: bool
) -> tuple[list[Limit], tuple[Cap, ...]]:
    """Return the limits of an account's caps on tags that a release must fit, and all its caps after the release.

    A cap counts all releases with its tag, whatever periods they read. This bounds every window (T-5).
    """
    limits, caps = list[Limit](), list[Cap]()
    for cap in account.caps:
        if cap.tag in under_caps:
            tagged = price_as_charged(cap.totals, under_caps[cap.tag], held=held)
            limits.append(Limit(account.name, cap.budget, cap.weights, cap.totals, tagged, tag=cap.tag))
            cap = replace(cap, totals=limits[-1].after)  # noqa: PLW2901 - the cap after the charge
        caps.append(cap)
    return limits, tuple(caps)


def _charge_to_windows(
    account: AccountRecord,
    periods: Periods,
    windows: WindowState,
    asked: Price,
    under_caps: Mapping[str, Price],
    places: PeriodSet,
    *,
    held: bool,
    of_release: bool = True,
    several: int = 1,
) -> AccountCharge:
    """Return the charge to each window that a release touches, one amount for all of them, and to the caps on tags.

    Args:
        of_release: False: it is the charge of an allotment, which no release counts and no settlement commits.
        several: the number of accounts of the line in whose windows a unit may be in several.

    Raises:
        Conflict: the account would have too many windows.
    """
    touched = {None: windows.common.totals} if places.everything else windows.totals_at(places)
    amount = price_as_charged_to_windows(touched.values(), asked, held=held)
    committed, kept = ([], [(amount, 1)]) if held and of_release else ([(amount, 1)], [])
    seq = account.head.seq + 1
    after = windows.charged(account.weights, places, seq, committed=committed, held=kept, releases=int(of_release))
    most = after.most_windows(account.weights, several)
    if after.number > max(most, windows.number):  # an older ledger may have more
        raise Conflict(
            f"an account of the line would have more than {most} windows, the most that it can have: open another"
            " account for further periods"
        )
    limit = Limit(account.name, account.budget, account.weights, windows.bound, amount, raised=after.bound)
    if limit.shortfalls:  # else it fits what bounds all windows, and so each of them
        limit = _window_limit(account, periods, (windows, after), places, amount)
    limits, caps = _charge_to_caps(account, under_caps, held=held)
    return AccountCharge(amount, after.bound, (limit, *limits), caps, after)


def next_window_limit(
    account: AccountRecord, periods: Periods, windows: WindowState, places: PeriodSet, amount: Price, *, earlier: int
) -> Limit:
    """Return the limit that decides on a release with an amount after so many releases with the same amount."""
    seq = account.head.seq + 1
    if earlier:
        windows = windows.charged(account.weights, places, seq, committed=[(amount, earlier)])
    after = windows.charged(account.weights, places, seq, committed=[(amount, 1)])
    return _window_limit(account, periods, (windows, after), places, amount)


def _window_limit(
    account: AccountRecord,
    periods: Periods,
    windows: tuple[WindowState, WindowState],
    places: PeriodSet,
    amount: Price,
) -> Limit:
    """Return a limit that the release fits if and only if it fits the window of each place.

    Where all windows are touched and not compared, their maximum decides.

    Args:
        windows: those of the account before and after the release.
    """
    if periods.several is not None and not places.everything:
        return _limit_of_several(account, periods, windows, places, amount)
    return _limit_of_one(account, periods, windows[0], places, amount)


def _limit_of_one(
    account: AccountRecord, periods: Periods, windows: WindowState, places: PeriodSet, amount: Price
) -> Limit:
    """Return a limit that the release fits if and only if it fits each place by itself, to which it adds one amount."""
    budget, weights, common = account.budget, account.weights, windows.common.totals
    found, most = touched_totals(account, windows, places, amount)
    window = decisive_window(budget, weights, common, found, amount, most)
    place = window.place
    name = None if place is None else str(write_period(periods.calendar, place))
    if place is not None and periods.several is not None:
        totals, after = windows.totals_of({*windows.leads, place}), add_price(common, amount)
        found_leads = leading(weights, totals, periods.several)
        name = name_of(periods, worst_places(budget, weights, after, found_leads, totals, place))
    return Limit(account.name, budget, weights, window.totals, amount, window=name)


def touched_totals(
    account: AccountRecord, windows: WindowState, places: PeriodSet, amount: Price
) -> tuple[dict[int, Totals], Totals | None]:
    """Return the totals of the windows at some places, as ``decisive_window`` takes them.

    Returns:
        The totals of each window, without common ones, and of all windows also a bound. Where these are not compared,
        there is the bound alone.
    """
    if not places.everything:
        return windows.totals_at(places), None
    return windows.bounds(account.budget, account.weights, amount) if windows.compared else {}, windows.most


def _limit_of_several(
    account: AccountRecord,
    periods: Periods,
    windows: tuple[WindowState, WindowState],
    places: PeriodSet,
    amount: Price,
) -> Limit:
    """Return a limit that the release fits only if it fits every set of periods of one unit that it touches (P-9).

    Args:
        windows: those of the account before and after the release.
    """
    before, after = windows
    known = {*before.leads, *places.members}
    found = decisive_windows(
        account.budget,
        account.weights,
        periods.several or 1,
        before.common.totals,
        (before.bound, after.bound),
        (before.totals_of(known), after.totals_of(known)),
        places.members,
    )
    name = name_of(periods, found.places) if found.places else None
    return Limit(account.name, account.budget, account.weights, found.before, amount, window=name, raised=found.after)


def with_windows(
    connection: Connection, line: Sequence[AccountRecord], releases: Sequence[Prepared]
) -> list[AccountRecord]:
    """Return the accounts of a line with the windows that the releases touch.

    All windows are read where a release is to all periods, and does not fit their maximum, if it does not take long to
    compare them with each such release, in all accounts of the line.

    Raises:
        Altered: a row of a window is not as the service wrote it.
    """
    return [_with_windows(connection, line, number, releases) for number in range(len(line))]


def _with_windows(
    connection: Connection, line: Sequence[AccountRecord], number: int, releases: Sequence[Prepared]
) -> AccountRecord:
    account = line[number]
    windows = account.windows
    if windows is None:
        return account
    charged = [one.places for release in releases if (one := release.periods[number]) is not None]
    places = set_of(place for one in charged for place in one.ranges)
    everything = sum(one.everything for one in charged)
    if everything:
        asked = [release.prices[number] for release in releases]
        account = with_all_windows(connection, account, asked, times=everything * len(line))
    if places.ranges and account.windows is windows:
        account = replace(account, windows=read_at(connection, account.id, windows, places))
    return account


def with_all_windows(
    connection: Connection, account: AccountRecord, asked: Sequence[Price], *, times: int = 1
) -> AccountRecord:
    """Return an account with all its windows, where charges to all periods exceed their maximum, if they are few.

    Args:
        times: how often each window is compared.

    Raises:
        Altered: a row of a window is not as the service wrote it.
    """
    windows = account.windows
    if windows is None or not windows.are_few(account.weights, times):
        return account
    after = add_prices(account.totals, [(one, 1) for one in asked])
    if not shortfalls(account.budget, account.weights, account.totals, after):
        return account
    return replace(account, windows=read_at(connection, account.id, replace(windows, compared=True), ALL))


def limits_of(charges: Sequence[AccountCharge]) -> Iterator[Limit]:
    """Yield all limits of a line's charges, those of the release's own account first."""
    for charge in reversed(charges):
        yield from charge.limits


def failures_of(charges: Sequence[AccountCharge]) -> list[Overrun]:
    """Return the caps that a release does not fit, those of its own account first; none: it is admitted."""
    return [
        accounts.overrun(
            limit.account, limit.budget, gap.cap, gap.requested, gap.remaining, tag=limit.tag, window=limit.window
        )
        for limit in limits_of(charges)
        for gap in limit.shortfalls
    ]
