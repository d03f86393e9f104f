"""Sums of an account's charges by window, as its journal has them so far."""

from collections import Counter, defaultdict

from service.ledger.accounts import account_periods
from service.ledger.journal.entry_texts import PriceKey, price_of_key
from service.ledger.spending.window_rows import EMPTY, Window
from service.privacy.periods import Periods

_DISTINCT = 4096  # amounts over the same periods that are counted before they are added up


class WindowSums:
    """The totals of windows; equal charges over equal periods are counted before they are added up.

    Charges to all periods are not among them.
    """

    def __init__(self, periods: Periods) -> None:
        self.periods = periods
        self._windows: dict[int, Window] = {}  # without what is still counted
        self._counts: Counter[tuple[str, PriceKey, bool]] = Counter()  # by periods, amount, and whether it is held
        self._last: dict[str, int] = {}  # the last entry that charged these periods, or gave back there

    def add(self, periods: str, amount: PriceKey, seq: int, count: int = 1, *, held: bool) -> None:
        """Add an amount ``count`` times; a negative count takes it away.

        Args:
            periods: as canonical JSON.
            seq: the number of the entry.

        Raises:
            InvalidInput, ValueError: the service writes no such periods.
        """
        if periods not in self._last:
            account_periods.stated(self.periods, periods)
        self._counts[periods, amount, held] += count
        self._last[periods] = seq
        if len(self._counts) > _DISTINCT:
            self._add_up()

    def _add_up(self) -> None:
        charges: defaultdict[int, list[tuple[PriceKey, bool, int]]] = defaultdict(list)
        last: Counter[int] = Counter()
        for periods, seq in self._last.items():
            for place in account_periods.stated(self.periods, periods).places.members:
                last[place] = max(last[place], seq)
        for (periods, amount, held), count in self._counts.items():
            for place in account_periods.stated(self.periods, periods).places.members:
                charges[place].append((amount, held, count))
        for place, seq in last.items():
            some = charges[place]
            self._windows[place] = self._windows.get(place, EMPTY).changed(
                max(seq, self._windows.get(place, EMPTY).seq),
                committed=[(price_of_key(amount), count) for amount, held, count in some if not held],
                held=[(price_of_key(amount), count) for amount, held, count in some if held],
                releases=sum(count for _, _, count in some),
            )
        self._counts.clear()
        self._last.clear()

    @property
    def windows(self) -> dict[int, Window]:
        """Return the windows that were ever touched.

        Raises:
            TypeError, ValueError: an amount is no price.
        """
        if self._last:
            self._add_up()
        return self._windows
