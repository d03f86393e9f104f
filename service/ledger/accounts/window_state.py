"""The windows of an account with periods: what its row says of them, and how charges change them.

The row holds the totals of releases to all periods, which every window has, and the maximum over windows of the other
totals, figure by figure. Their sum bounds every window (P-4 in ``docs/mathematics/periods.md``): it is the account's
``totals``. Releases to some periods change the rows of the windows that they touch (``window_rows``), which are read
under the lock of the account, and written with its row.

Where a unit can be in any periods, a window is one period, and the row holds the sum of the largest in place of the
maximum, with the places of the leading windows, which decide it (P-10). A charge reads these as well as those that it
touches. Where one of them loses something, all windows are read.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from service.ledger.accounts import budgets
from service.ledger.accounts.spending_rows import sum_after
from service.ledger.accounts.window_rows import EMPTY, Window, Windows, altered, is_sum, read_windows, write_windows
from service.ledger.storage.transaction import secret_of
from service.privacy.accounting.leading_windows import leading
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Budget, Weights, shortfalls
from service.privacy.accounting.totals import Totals, add_price, add_totals
from service.privacy.accounting.windows import maximum, reaches
from service.privacy.periods import ALL, Periods, PeriodSet, set_of

MOST_WINDOWS = 1_000_000
"""The largest number of windows of an account."""
_LOOK = 500_000  # microseconds that it takes to read and compare all windows of an account under its lock
_WINDOW, _WINDOW_ORDER = 60, 1.1  # of them for a window of unlike totals, and for each of its orders, as measured


def looked_at(weights: Weights) -> int:
    """Return the largest number of windows that are all read under an account's lock, by the orders of its budget."""
    return int(_LOOK / (_WINDOW + len(weights.orders) * _WINDOW_ORDER))


@dataclass(frozen=True, slots=True)
class WindowState:
    """The windows of an account.

    Attributes:
        common: of the releases to all periods.
        most: nowhere below the totals of any window, common ones aside: their maximum, unless charges were taken away
            while there were more windows than are looked at. With ``several``, nowhere below the sum of so many.
        number: of windows that were ever touched.
        sum: the stored sum of their rows; None for an account that is not saved yet.
        stored: the windows that were read in this transaction; it must read what it changes.
        present: the same windows, and new ones, as the transaction has changed them.
        several: the most windows of one unit, where they may be any; None: one window, by offsets.
        leads: with ``several``, the places of the windows that decide ``most``.
        outdated: whether one of these has lost something, so that ``most`` and ``leads`` have to be found anew.
        compared: whether all are present, and a release to all periods is compared with each.
    """

    common: Window = EMPTY
    most: Totals = field(default_factory=Totals)
    number: int = 0
    sum: str | None = None
    stored: Windows = field(default_factory=dict, compare=False)
    present: Windows = field(default_factory=dict, compare=False)
    several: int | None = None
    leads: tuple[int, ...] = ()
    outdated: bool = False
    compared: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls, weights: Weights, periods: Periods, common: Window = EMPTY, windows: Windows | None = None
    ) -> "WindowState":
        """Return the windows of an account, all of which are given, and none of which is stored."""
        present = windows or {}
        state = cls(common, number=len(present), present=present, several=periods.several)
        return state.over(weights, present)

    def are_few(self, weights: Weights, times: int = 1) -> bool:
        """Return whether all windows may be read under the account's lock, and each compared so many times."""
        return self.number * times <= looked_at(weights)

    def most_windows(self, weights: Weights) -> int:
        """Return the largest number of windows; all are read where a leading one loses something."""
        return MOST_WINDOWS if self.several is None else looked_at(weights)

    @property
    def bound(self) -> Totals:
        """Return totals that are nowhere below those of any window, common ones included."""
        return add_totals(self.common.totals, self.most)

    @property
    def is_below_zero(self) -> bool:
        """True where more was taken away than was charged, of the common totals or of a window that was read."""
        return any(window.is_below_zero for window in (self.common, *self.present.values()))

    def totals_at(self, places: PeriodSet) -> dict[int, Totals]:
        """Return the totals of the windows at some places, all of which were read, without the common ones."""
        return self.totals_of(places.members)

    def totals_of(self, places: Iterable[int]) -> dict[int, Totals]:
        """Return the totals of the windows at these places, as ``totals_at``."""
        return {place: self.present.get(place, EMPTY).totals for place in places}

    def bounds(self, budget: Budget, weights: Weights, amount: Price) -> dict[int, Totals]:
        """Return for each window totals nowhere below those of a unit in it, where all are known; without common ones.

        They are the window's own, or with ``several``, its own together with the worst others (P-11): none where an
        amount that is added to all of them fits the sum of the largest.
        """
        totals = self.totals_of(self.present)
        if self.several is None:
            return totals
        if not shortfalls(budget, weights, self.bound, add_price(self.bound, amount)):
            return {}
        found = leading(weights, totals, self.several)
        return {place: found.beside(weights, own) for place, own in totals.items()}

    def charged(
        self,
        weights: Weights,
        places: PeriodSet,
        seq: int,
        *,
        committed: Sequence[tuple[Price, int]] = (),
        held: Sequence[tuple[Price, int]] = (),
        releases: int = 0,
    ) -> "WindowState":
        """Return the windows after an entry that charges the windows at some places, or all.

        Args:
            places: they were read in this transaction.
            seq: as for ``Window.changed``, like the rest.
        """
        if places.everything:
            common = self.common.changed(0, committed=committed, held=held, releases=releases)
            return replace(self, common=common)
        changed = {
            place: self.present.get(place, EMPTY).changed(seq, committed=committed, held=held, releases=releases)
            for place in places.members
        }
        number = self.number + sum(place not in self.present for place in changed)
        after = replace(self, number=number, present={**self.present, **changed})
        if self.several is None:
            return replace(after, most=maximum(weights, [self.most, *(window.totals for window in changed.values())]))
        if any(count < 0 for _, count in (*committed, *held)):
            lost = any(place in changed and changed[place].totals != self.present[place].totals for place in self.leads)
            return replace(after, outdated=self.outdated or lost)
        after = after.over(weights, {place: after.present[place] for place in {*self.leads, *changed}})
        return replace(after, outdated=self.outdated)

    def over(self, weights: Weights, windows: Windows) -> "WindowState":
        """Return the state with the bound of these windows: all, or those that lead and those that were charged."""
        totals = {place: window.totals for place, window in windows.items()}
        if self.several is None:
            return replace(self, most=maximum(weights, list(totals.values())))
        found = leading(weights, totals, self.several)
        return replace(self, most=found.together, leads=found.places, outdated=False)


def read_at(connection: Connection, account_id: int, state: WindowState, places: PeriodSet) -> WindowState:
    """Return the windows of an account with those at some places and the leading ones, or with all of them.

    Raises:
        Altered: a row is not as the service wrote it; of all rows, also that one is missing or an older one.
    """
    if not places.everything:
        places = set_of((*places.ranges, *((place, place) for place in state.leads)))
    found = read_windows(connection, account_id, places)
    if places.everything and not is_sum(secret_of(connection), account_id, state.sum, found):
        raise altered(account_id)
    present = {**found, **state.present}
    if not present.keys() >= set(state.leads):
        raise altered(account_id)
    return replace(state, stored={**state.stored, **found}, present=present)


def lowered(
    connection: Connection, account_id: int, weights: Weights, state: WindowState, before: Windows
) -> WindowState:
    """Return the windows after charges were taken away, with their maximum found anew where it may be lower.

    Args:
        state: with the windows as they are now.
        before: the windows from which charges were taken away, as they were.
    """
    if state.several is not None:
        lower = state.outdated
    elif lower := any(reaches(weights, state.most, window.totals) for window in before.values()):
        lower = state.are_few(weights)
    if not lower:
        return state  # the maximum stays an upper bound
    state = read_at(connection, account_id, state, ALL)
    return state.over(weights, state.present)


def save_windows(connection: Connection, account_id: int, state: WindowState) -> WindowState:
    """Write the changed windows of a locked account; return what its row is to say of them."""
    added, secret = write_windows(connection, account_id, state.stored, state.present), secret_of(connection)
    if not added and state.sum is not None:
        return state
    return replace(state, sum=sum_after(secret, account_id, state.sum, added), stored=state.present)


def write_state(state: WindowState) -> str:
    """Return the text of windows for the account's row."""
    if state.outdated:
        raise ValueError("expected windows whose bound was found anew")
    common = {
        "committed": budgets.write_totals(state.common.committed),
        "held": budgets.write_totals(state.common.held),
        "releases": state.common.releases,
    }
    document: dict[str, object] = {"common": common}
    document |= {"most": budgets.write_totals(state.most), "number": state.number, "sum": state.sum}
    if state.several is not None:
        document["leading"] = {"several": state.several, "places": state.leads}
    return json.dumps(document, separators=(",", ":"))


def read_state(text: str) -> WindowState:
    """Return the windows that an account's row states, none of which is read yet."""
    document = json.loads(text)
    common, leads = document["common"], document.get("leading", {"several": None, "places": ()})
    return WindowState(
        common=Window(
            budgets.stored_totals(common["committed"]), budgets.stored_totals(common["held"]), common["releases"]
        ),
        most=budgets.stored_totals(document["most"]),
        number=document["number"],
        sum=document["sum"],
        several=leads["several"],
        leads=tuple(leads["places"]),
    )
