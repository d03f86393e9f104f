"""The windows of an account with periods, as the account's row states them and as charges change them.

The row holds two totals: those of releases to all periods, which count in every window, and the maximum over windows of
the other totals, figure by figure. The sum of both bounds every window (P-4 in ``docs/mathematics/periods.md``) and is
the account's ``totals``. Releases to some periods change the rows of the windows that they touch (``window_rows``).
These rows are read under the account's lock and written together with its row.

If a unit can be in any periods, each window is one period. Instead of the maximum, the row then holds the sum of the
largest windows, and the places of the leading windows, which determine that sum (P-10). A charge reads the leading
windows and those that it touches. If a leading window loses a charge, all windows are read.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from service.ledger.accounts import budgets
from service.ledger.spending.spending_rows import sum_after
from service.ledger.spending.window_rows import EMPTY, Window, Windows, altered, is_sum, read_windows, write_windows
from service.ledger.storage.transaction import secret_of
from service.privacy.accounting.leading_windows import leading
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Budget, Weights, shortfalls
from service.privacy.accounting.totals import Totals, add_price, add_totals
from service.privacy.accounting.windows import maximum, reaches
from service.privacy.periods import ALL, Periods, PeriodSet, set_of

MOST_WINDOWS = 1_000_000
"""The largest number of windows of an account."""
_LONGEST_READ = 500_000  # microseconds for reading and comparing all windows of an account under its lock
_WINDOW, _WINDOW_ORDER = (
    60,
    1.1,
)  # microseconds for a window with distinct totals, and for each order of it, as measured


def looked_at(weights: Weights) -> int:
    """Return the largest number of windows at which all are read under an account's lock: fewer for more orders."""
    return int(_LONGEST_READ / (_WINDOW + len(weights.orders) * _WINDOW_ORDER))


@dataclass(frozen=True, slots=True)
class WindowState:
    """The windows of an account.

    Attributes:
        common: the totals of the releases to all periods.
        most: an upper bound of every window's other totals, figure by figure. It is their maximum, unless charges were
            removed while there were too many windows to read all. With ``several``, it bounds every sum of so many
            windows.
        number: the number of windows that were ever touched.
        sum: the stored sum of their rows; None for an account that is not saved yet.
        stored: the windows as this transaction read them; it must read every window that it changes.
        present: the same windows and new ones, with the changes of this transaction.
        several: the largest number of windows of one unit, if these may be any; None: one window, given by offsets.
        leads: with ``several``, the places of the windows that determine ``most``.
        outdated: whether a leading window has lost a charge, so that ``most`` and ``leads`` must be computed again.
        compared: whether all windows are present, and a release to all periods is compared with each of them.
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
        """Return the state of an account from all of its windows, none of which is stored yet."""
        present = windows or {}
        state = cls(common, number=len(present), present=present, several=periods.several)
        return state.bounded_by(weights, present)

    def are_few(self, weights: Weights, times: int = 1) -> bool:
        """Return whether all windows may be read under the account's lock, and each compared ``times`` times."""
        return self.number * times <= looked_at(weights)

    def most_windows(self, weights: Weights, accounts: int = 1) -> int:
        """Return the largest number of windows that the account may have.

        With ``several``, it must be possible to read all, since they are read when a leading window loses a charge.

        Args:
            accounts: of a line that have ``several``; all of them are read then.
        """
        return MOST_WINDOWS if self.several is None else looked_at(weights) // max(1, accounts)

    @property
    def bound(self) -> Totals:
        """Upper bounds of the totals of every window, common totals included."""
        return add_totals(self.common.totals, self.most)

    @property
    def is_below_zero(self) -> bool:
        """True if more was removed than was charged, in the common totals or in a window that was read."""
        return any(window.is_below_zero for window in (self.common, *self.present.values()))

    def totals_at(self, places: PeriodSet) -> dict[int, Totals]:
        """Return the totals of the windows at some places, which were read before, without the common totals."""
        return self.totals_of(places.members)

    def totals_of(self, places: Iterable[int]) -> dict[int, Totals]:
        """Return the totals of the windows at some places, as ``totals_at`` does."""
        return {place: self.present.get(place, EMPTY).totals for place in places}

    def bounds(self, budget: Budget, weights: Weights, amount: Price) -> dict[int, Totals]:
        """Return for each window upper bounds of the totals of a unit in it, without the common totals.

        All windows must be present. The bounds are a window's own totals, or with ``several``, its own together with
        those of the worst other windows (P-11). The result is empty with ``several`` if the amount, added to all
        windows, fits the sum of the largest: then no window needs to be compared.
        """
        totals = self.totals_of(self.present)
        if self.several is None:
            return totals
        if not shortfalls(budget, weights, self.bound, add_price(self.bound, amount)):
            return {}
        return self.sums(weights, self.present)

    def sums(self, weights: Weights, places: Iterable[int]) -> dict[int, Totals]:
        """Return for some windows their totals together with those of the worst other windows (P-11).

        The leading windows must be present, and the common totals are not counted.
        """
        found = leading(weights, self.totals_of(self.present), self.several or 1)
        return {place: found.beside(weights, own) for place, own in self.totals_of(places).items()}

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
        """Return the state after an entry that charges the windows at some places, or at all.

        Args:
            weights: the orders of the account's budget.
            places: the charged windows, which were read in this transaction; all periods change the common totals.
            seq: as for ``Window.changed``.
            committed: as for ``Window.changed``.
            held: as for ``Window.changed``.
            releases: as for ``Window.changed``.
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
        after = after.bounded_by(weights, {place: after.present[place] for place in {*self.leads, *changed}})
        return replace(after, outdated=self.outdated)

    def bounded_by(self, weights: Weights, windows: Windows) -> "WindowState":
        """Return the state with the bound of these windows: all of them, or the leading and the charged ones."""
        totals = {place: window.totals for place, window in windows.items()}
        if self.several is None:
            return replace(self, most=maximum(weights, list(totals.values())))
        found = leading(weights, totals, self.several)
        return replace(self, most=found.together, leads=found.places, outdated=False)


def read_at(connection: Connection, account_id: int, state: WindowState, places: PeriodSet) -> WindowState:
    """Return the state with the windows at some places and the leading ones read from the database, or with all.

    Raises:
        Altered: a row is not as the service wrote it, or a leading window has none. If all rows are read, also: a row
            is missing, or an older version of it was put back.
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
    """Return the state after charges were removed, with its bound computed again if that may be lower now.

    Args:
        connection: the transaction, which holds the account's lock.
        account_id: the account.
        weights: the orders of its budget.
        state: the windows after the removal.
        before: the windows from which charges were removed, as they were before.
    """
    if state.several is not None:
        lower = state.outdated
    elif lower := any(reaches(weights, state.most, window.totals) for window in before.values()):
        lower = state.are_few(weights)
    if not lower:
        return state  # the present maximum remains an upper bound
    state = read_at(connection, account_id, state, ALL)
    return state.bounded_by(weights, state.present)


def save_windows(connection: Connection, account_id: int, state: WindowState) -> WindowState:
    """Write the changed windows of a locked account; return the state to write to the account's row."""
    added, secret = write_windows(connection, account_id, state.stored, state.present), secret_of(connection)
    if not added and state.sum is not None:
        return state
    return replace(state, sum=sum_after(secret, account_id, state.sum, added), stored=state.present)


def write_state(state: WindowState) -> str:
    """Return the text of the windows' state for the account's row."""
    if state.outdated:
        raise ValueError("expected windows whose bound was computed again")
    common = {
        "committed": budgets.store_totals(state.common.committed),
        "held": budgets.store_totals(state.common.held),
        "releases": state.common.releases,
    }
    document: dict[str, object] = {"common": common}
    document |= {"most": budgets.store_totals(state.most), "number": state.number, "sum": state.sum}
    if state.several is not None:
        document["leading"] = {"several": state.several, "places": state.leads}
    return json.dumps(document, separators=(",", ":"))


def read_state(text: str) -> WindowState:
    """Return the state in the text of an account's row; no window is read yet."""
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
