"""Sums of charges as a journal gives them, of an account's budget and of each cap on a tag."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entry_texts import PriceKey, price_of_key
from service.privacy.accounting.privacy_filter import Budget, Weights
from service.privacy.accounting.totals import Totals, add_prices, add_totals

_DISTINCT = 4096  # amounts that are counted before they are added up


class ChargeSum:
    """A sum of charges; equal charges are counted before they are added up."""

    def __init__(self) -> None:
        self._totals = Totals()  # except those that are still counted
        self._counts: Counter[PriceKey] = Counter()

    def add(self, amount: PriceKey, count: int = 1) -> None:
        """Add an amount ``count`` times; a negative count takes it away."""
        self._counts[amount] += count
        if len(self._counts) > _DISTINCT:
            self._add_up()

    def _add_up(self) -> None:
        self._totals = add_prices(self._totals, ((price_of_key(amount), n) for amount, n in self._counts.items() if n))
        self._counts.clear()

    @property
    def totals(self) -> Totals:
        """Return the sum of all charges.

        Raises:
            TypeError, ValueError: one of them is no price.
        """
        if self._counts:
            self._add_up()
        return self._totals


CapPrices = tuple[tuple[str, PriceKey], ...]
"""A release's price under each cap whose tag it carries, in the order of the tags."""


@dataclass(slots=True)
class CapState:
    """A cap on a tag as the journal has it so far.

    Attributes:
        weights: orders and weights, fixed when the cap was set.
        since: the number of the entry that set it.
        counted: the price of the releases that had committed before; None where the account was opened with the cap.
        committed, holds: the prices of committed releases, ``counted`` included, and of held ones.
    """

    budget: Budget
    weights: Weights
    since: int
    counted: PriceKey | None = None
    committed: ChargeSum = field(default_factory=ChargeSum)
    holds: ChargeSum = field(default_factory=ChargeSum)

    def count(self, counted: PriceKey) -> None:
        """Count the releases that had committed before the cap was set, at this price from now on."""
        if self.counted is not None:
            self.committed.add(self.counted, -1)
        self.counted = counted
        self.committed.add(counted)

    @property
    def totals(self) -> Totals:
        """Return the sum of the committed and held prices."""
        return add_totals(self.committed.totals, self.holds.totals)


class CapStates(dict[str, CapState]):
    """The caps of an account by their tags."""

    def find(self, tag: str) -> CapState:
        """Return the cap on a tag.

        Raises:
            BrokenChain: the tag has no cap.
        """
        cap = self.get(tag)
        if cap is None:
            raise BrokenChain("the entry states a price under a cap that the account does not have")
        return cap

    def commit(self, prices: Iterable[tuple[str, PriceKey]]) -> None:
        """Count prices of a committed release."""
        for tag, amount in prices:
            self.find(tag).committed.add(amount)

    def hold(self, prices: Iterable[tuple[str, PriceKey]], count: int = 1) -> None:
        """Count prices of a held release; a count of -1 ends the hold."""
        for tag, amount in prices:
            self.find(tag).holds.add(amount, count)
