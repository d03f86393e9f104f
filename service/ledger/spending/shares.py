"""The parts of an account's spent loss: the accounts under it, the tags, or the types of mechanisms.

Each summand of a charged plan belongs to one part, so the losses of the parts add up wherever losses do: in all
definitions but (epsilon, delta).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from sqlalchemy import Connection, select

from service.ledger.accounts.account_rows import without_strangers
from service.ledger.accounts.accounts import AccountRecord, read_accounts
from service.ledger.spending.spending import counts
from service.ledger.spending.spending_rows import Subplans
from service.ledger.spending.subplans import allotted_in, condensed_in, is_allotted, plan_in
from service.ledger.storage.tables import Account
from service.privacy.accounting.pricing import price
from service.privacy.accounting.privacy_filter import spent_of_cap
from service.privacy.accounting.totals import Totals, add_prices, add_totals, price_as_charged
from service.privacy.plans import Plan
from service.privacy.plans.walking import mechanisms_of, parts_of

By = Literal["account", "tag", "mechanism"]
MOST_PARTS = 20
"""The parts that are stated one by one: those with the greatest losses."""
MOST_READ = 200
"""The accounts under one whose spending is read: those with the most releases."""
_MOST_ROWS = 100_000  # of their spending


class PartKey(NamedTuple):
    """The subject of a part.

    Attributes:
        names: an account; the tags that its summands carry, all of them; or the types of their mechanisms. Empty for
            the account's own releases, without tags, and for allotments.
        allotted: it is what was allotted to accounts under it, whose releases are not known here.
    """

    names: tuple[str, ...]
    allotted: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the spent loss; ``spent`` is what it would count for by itself (None: infinite)."""

    key: PartKey
    spent: Fraction | None


@dataclass(frozen=True, slots=True)
class Shares:
    """The parts of an account's spent loss.

    Attributes:
        spent: the whole.
        parts: the greatest first.
        rest: the number of further parts, and their loss together; None: there are none.
        own_in_rest: the account's own releases are in the rest, because not all accounts under it were read.
    """

    spent: Fraction | None
    parts: list[Part]
    rest: tuple[int, Fraction | None] | None
    own_in_rest: bool = False


def shares_of(connection: Connection, account: AccountRecord, by: By) -> Shares:
    """Return the parts of an account's committed loss, of it and of those under it.

    Args:
        account: an account without periods.

    Raises:
        Altered: a row is not as the service wrote it.
    """
    spent, _ = counts(connection, account)
    priced = _Priced(account)
    if by != "account":
        groups: defaultdict[PartKey, Subplans] = defaultdict(Counter)
        key_of = _tags if by == "tag" else _mechanisms
        for subplan, number in spent.items():
            key = PartKey((), allotted=True) if is_allotted(subplan) else PartKey(key_of(plan_in(subplan)))
            groups[key][subplan] = number
        return _shares(priced, groups)
    below, unread = _below(connection, account, spent)
    own = Counter(spent)
    for subplans in below.values():
        own.subtract(subplans)
    if unread:
        return _shares(priced, below, unread, +own)
    return _shares(priced, {**below, PartKey(()): +own})


class _Priced:
    """The losses of subplans in an account's own definition; each distinct one is priced once.

    Prices are rounded up as those of reservations are, so that sums have a common denominator, however unlike they are.
    """

    def __init__(self, account: AccountRecord) -> None:
        self._account = account

    def totals(self, subplans: Subplans) -> Totals:
        orders, relation = self._account.weights.orders, self._account.neighbouring
        prices = ((price(condensed_in(one), relation, orders), number) for one, number in subplans.items() if number)
        return add_prices(Totals(), ((price_as_charged(Totals(), one, held=True), number) for one, number in prices))

    def loss(self, totals: Totals) -> Fraction | None:
        return spent_of_cap(self._account.budget, self._account.weights, totals)


def _shares(
    priced: _Priced, groups: Mapping[PartKey, Subplans], unread: int = 0, others: Subplans | None = None
) -> Shares:
    totals = {key: priced.totals(subplans) for key, subplans in groups.items() if subplans}
    losses = {key: priced.loss(one) for key, one in totals.items()}
    greatest = sorted(losses, key=lambda key: (losses[key] is not None, -(losses[key] or 0), key))
    shown, further = greatest[:MOST_PARTS], greatest[MOST_PARTS:]
    rest = _sum(totals[key] for key in further)
    if others is not None:
        rest = add_totals(rest, priced.totals(others))
    number = len(further) + unread
    return Shares(
        priced.loss(_sum([rest, *(totals[key] for key in shown)])),
        [Part(key, losses[key]) for key in shown],
        (number, priced.loss(rest)) if number else None,
        own_in_rest=others is not None,
    )


def _sum(several: Iterable[Totals]) -> Totals:
    whole = Totals()
    for one in several:
        whole = add_totals(whole, one)
    return whole


def _below(connection: Connection, account: AccountRecord, spent: Subplans) -> tuple[dict[PartKey, Subplans], int]:
    """Return what each account directly under one has charged to it, and the number of those that were not read."""
    found: defaultdict[PartKey, Subplans] = defaultdict(Counter)
    query = select(Account.id, Account.name).where(Account.parent_id == account.id, Account.funding.is_(None))
    children = connection.execute(query.order_by(Account.releases.desc(), Account.name)).all()
    names = [row.name for row in without_strangers(connection, children)]
    rows = read = 0
    for child in read_accounts(connection, names[:MOST_READ]):
        if rows > _MOST_ROWS:
            break
        subplans, _ = counts(connection, child)
        found[PartKey((child.name,))] = +subplans
        rows, read = rows + len(subplans), read + 1
    within = Counter[str]()
    for subplans in found.values():
        within.update(subplans)
    for subplan, number in spent.items():
        if is_allotted(subplan) and number > within[subplan]:
            found[PartKey((allotted_in(subplan),), allotted=True)][subplan] = number - within[subplan]
    return found, len(names) - read


def _tags(plan: Plan) -> tuple[str, ...]:
    found = set(plan.tags)
    for part in parts_of(plan):
        found.update(_tags(part))
    return tuple(sorted(found))


def _mechanisms(plan: Plan) -> tuple[str, ...]:
    return tuple(sorted({mechanism.TYPE for mechanism in mechanisms_of(plan)}))
