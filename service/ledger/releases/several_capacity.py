"""Equal releases to some periods of an account where a unit can be in any: how many it admits (C-9).

Such a release adds its amount to each period that it reads, and the largest of them are added up. So the number is
found by trials, each of which is the admission of a release after a number of equal ones.
"""

from dataclasses import dataclass, replace

from service.ledger.accounts import budgets
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.releases import admission
from service.ledger.releases.admission import Limit
from service.ledger.spending.window_rows import Window
from service.ledger.spending.window_state import WindowState
from service.privacy.accounting.capacity import BudgetCharge, fitting, most_admitted
from service.privacy.accounting.leading_windows import leading, summed_exactly
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.totals import Totals, add_price, add_totals, multiple
from service.privacy.periods import Periods, PeriodSet

_FURTHER = 8
"""The largest number of steps by which a count is raised from below."""
TRIALS = 8
"""The number of comparisons of all its periods that a count takes at most where the guess is right, as it mostly is."""


@dataclass(frozen=True, slots=True)
class SeveralPeriods:
    """Equal releases to some periods.

    Attributes:
        account: the account before them.
        periods: those of the account.
        windows: its leading periods and those that the releases read.
        places: the periods that the releases read.
        amount: of the first release, as it is charged.
        exact: this amount was not rounded up, so that each later release has it too.
    """

    account: AccountRecord
    periods: Periods
    windows: WindowState
    places: PeriodSet
    amount: Price
    exact: bool

    @property
    def _number(self) -> int:
        return self.periods.several or 1

    def totals_after(self, number: int) -> list[Totals]:
        """Return the sums of each period and the worst others after a number of these releases, equal ones once."""
        windows = self.windows
        if number:
            windows = windows.charged(self.account.weights, self.places, 0, committed=[(self.amount, number)])
        sums = windows.sums(self.account.weights, self.places.members).values()
        unlike = {budgets.write_totals(one): one for one in sums}.values()
        return [add_totals(windows.common.totals, one) for one in unlike]

    def sum_alone(self) -> Totals:
        """Return the largest sum of periods after one of these releases in an unused account."""
        one = add_price(Totals(), self.amount)
        most = min(self._number, self.places.number)
        return leading(self.account.weights, dict.fromkeys(range(most), one), self._number).together

    def limit_after(self, number: int) -> Limit:
        """Return the limit that decides on one more release after as many as are admitted."""
        limit = self._limit_after(number)
        return limit if limit.shortfalls else self._summed_exactly()._limit_after(number)

    def _limit_after(self, number: int) -> Limit:
        return admission.next_window_limit(
            self.account, self.periods, self.windows, self.places, self.amount, earlier=number
        )

    def _admits(self, number: int) -> bool:
        """Return whether the release with a number is admitted, after those with lower numbers."""
        return not self._limit_after(number - 1).shortfalls

    def count(self, most: int) -> int:
        """Return how many of these releases are admitted, one after the other; at most ``most``.

        Where sums are rounded, a larger number can be admitted after a smaller one is not. Then totals and amount are
        rounded up first, which admits no more, and further releases are tried one by one.
        """
        summed = self._summed_exactly()
        number = summed._count(most)
        if summed is not self and self.exact:
            for _ in range(_FURTHER):
                if number == most or not self._admits(number + 1):
                    break
                number += 1
        return number

    def _summed_exactly(self) -> "SeveralPeriods":
        """Return releases that admit no more, and none of whose sums is rounded: these if theirs are not."""
        known = self.windows.totals_of({*self.windows.leads, *self.places.members})
        totals, amount = summed_exactly(self.account.weights, known, self.amount, exact=self.exact)
        if amount is self.amount:
            return self
        present = {place: Window(committed=one) for place, one in totals.items()}
        return replace(self, windows=replace(self.windows, present=present), amount=amount)

    def _count(self, most: int) -> int:
        guess = self._guess(most)
        return most_admitted(self._admits, [guess, guess + 1], most)

    def _guess(self, most: int) -> int:
        """Return about how many are admitted, as if each release were added to as many of the largest as there may be.

        The sums grow by no more than that, and by as much once the largest are all periods that the releases read.
        """
        together = multiple(self.amount, min(self._number, self.places.number))
        number = 0
        for _ in range(_FURTHER):
            more = self._fitting(self.totals_after(number), together)
            number = min(number + more, most)
            if not more or number == most:
                break
        return number

    def _fitting(self, totals: list[Totals], amount: Price) -> int:
        """Return how many amounts each of some totals admits; one more than are counted if more fit."""
        budget, weights = self.account.budget, self.account.weights
        number, stop = fitting([BudgetCharge(budget, weights, one, amount) for one in totals])
        return number + (stop is None)
