"""Admission of a release: the limits that it must fit in a line of accounts, and what it adds to each account.

Charges, dry runs, refusals and the search for fitting noise all ask here. So a further kind of limit is added in
``charges_of`` alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from service.errors import AccountClosed, Overrun
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.releases.preparation import Prepared
from service.ledger.releases.reservation_rows import State
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Budget, Shortfall, Weights, shortfalls, spent_alone
from service.privacy.accounting.totals import Totals, add_price, price_as_charged


@dataclass(frozen=True)
class Limit:
    """A budget that a release must fit: that of an account, or of a part of one.

    Attributes:
        account: the account's name.
        before: the totals of the account, or of the part, before the release.
        amount: the charge, as ``price_as_charged`` makes it for these totals.
        tag: of a budget that caps one tag; None: it caps all.
        window: the name of the window that the totals are of; None: the account has no windows.
    """

    account: str
    budget: Budget
    weights: Weights
    before: Totals
    amount: Price
    tag: str | None = None
    window: str | None = None

    @cached_property
    def after(self) -> Totals:
        """The totals after the release."""
        return add_price(self.before, self.amount)

    def shortfalls(self) -> list[Shortfall]:
        """Return the caps of the budget that the release does not fit."""
        return shortfalls(self.budget, self.weights, self.before, self.after)


class AccountCharge(NamedTuple):
    """The charge of a release to one account of its line.

    Attributes:
        amount: the price that the account's journal states.
        totals: those of the account after the charge.
        limits: the budgets that it must fit.
    """

    amount: Price
    totals: Totals
    limits: Sequence[Limit]


def require_line(line: Sequence[AccountRecord], releases: Iterable[Prepared]) -> None:
    """Refuse releases that were prepared for another line, and a line with a closed account.

    Raises:
        AccountClosed: an account of the line takes no releases.
        ValueError: a release was prepared for another account.
    """
    account_ids = tuple(account.id for account in line)
    if any(prepared.line.ids != account_ids for prepared in releases):
        raise ValueError(f"expected releases that were prepared for {line[-1].name}")
    for account in reversed(line):
        if account.state == "closed":
            raise AccountClosed(account.name)


def first_state(line: Sequence[AccountRecord], prepared: Prepared) -> State:
    """Return the release's first state; it is proposed if some account of the line requires a second person."""
    for account, asked in zip(line, prepared.prices, strict=True):
        if account.approval_above is not None:
            size = spent_alone(account.budget, account.weights, asked)
            if size is None or size > account.approval_above:
                return "proposed"
    return "committed" if prepared.reserve_for is None else "reserved"


def charges_of(line: Sequence[AccountRecord], prepared: Prepared, *, held: bool) -> list[AccountCharge]:
    """Return the charge of a release to each account of its line, admitted or not.

    Args:
        line: root first, in the state to charge.
        held: the charge can be taken away again.

    Returns:
        One for each account, root first.
    """
    return [_charge_to(account, asked, held=held) for account, asked in zip(line, prepared.prices, strict=True)]


def _charge_to(account: AccountRecord, asked: Price, *, held: bool) -> AccountCharge:
    amount = price_as_charged(account.totals, asked, held=held)
    limit = Limit(account.name, account.budget, account.weights, account.totals, amount)
    return AccountCharge(amount, limit.after, (limit,))


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
        for gap in limit.shortfalls()
    ]
