"""The capacity of a line of accounts: how often a plan could still be registered, found without a lock or an entry."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from service.ledger.accounts import lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.lines import Line
from service.ledger.releases import admission
from service.ledger.releases.admission import Limit
from service.ledger.releases.preparation import Prepared
from service.ledger.releases.settlement import without_due_reservations
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.privacy.accounting.capacity import BudgetCharge, Fit, around_estimate, fitting, gauge, share_alone
from service.privacy.accounting.pricing import Price


class Undecided(Exception):
    """Signal that estimated prices do not decide a capacity; the exact ones do."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A limit and the name of its cap that one more release would not fit."""

    limit: Limit
    cap: str


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of releases of one plan that an account and those above it still admit.

    Attributes:
        fits: their number, at most ``MOST_COUNTED``.
        stop: the cap that the next one would not fit; None where at least one more than ``MOST_COUNTED`` fit.
        share: the part of the account's own budget that each takes, on the scale of the gauge; None is infinite.
        used: the used part of that budget.
        used_after_one: the used part after one of them.
    """

    account: AccountRecord
    fits: int
    stop: Stop | None
    share: Fraction | None
    used: Fraction | None
    used_after_one: Fraction | None


def present_line(database: Database, line: Line) -> list[AccountRecord]:
    """Return the accounts of a line, root first, without overdue reservations; nothing is locked or written.

    Raises:
        NotFound: the database was replaced by one in which they are not this line.
    """
    at = clock.now()
    with database.read() as connection:
        return [without_due_reservations(connection, account, at) for account in lines.read_line(connection, line)]


def capacity(line: Sequence[AccountRecord], release: Prepared, *, estimated: bool = False) -> Capacity:
    """Count how often a release could be registered, one after the other, as ``charge`` would admit it.

    Args:
        line: root first.
        release: of any name; its plan and prices are what counts.
        estimated: its prices are those of ``estimate_price``.

    Raises:
        AccountClosed: an account of the line takes no releases.
        Undecided: with exact prices another number may fit.
    """
    admission.require_line(line, [release])
    held = admission.first_state(line, release) != "committed"
    limits = list(admission.limits_of(admission.charges_of(line, release, held=held)))
    number, stop = fit = _fitting(limits, [limit.amount for limit in limits])
    if estimated:
        below, above = zip(*(around_estimate(limit.amount) for limit in limits), strict=True)
        if not _fitting(limits, below) == fit == _fitting(limits, above):
            raise Undecided
    own = limits[0]
    return Capacity(
        account=line[-1],
        fits=number,
        stop=None if stop is None else Stop(limits[stop[0]], stop[1]),
        share=share_alone(own.budget, own.weights, own.amount),
        used=gauge(own.budget, own.weights, own.before).used,
        used_after_one=gauge(own.budget, own.weights, own.after).used,
    )


def _fitting(limits: Sequence[Limit], amounts: Sequence[Price]) -> Fit:
    charges = zip(limits, amounts, strict=True)
    return fitting([BudgetCharge(limit.budget, limit.weights, limit.before, amount) for limit, amount in charges])
