"""Prices of an account's earlier releases under caps that it is about to get.

They are found before the account is locked, because this may take minutes: in a helper process, so that balances and
draws do not wait for it. Under the lock, only what came since then is priced, and only if that takes a moment.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from service.errors import Altered, Conflict, Unavailable
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import write_price
from service.ledger.accounts.caps import (
    Cap,
    KnownPrices,
    earlier_part,
    is_known,
    price_of_earlier,
    promised_since_opening,
)
from service.ledger.journal.charge_sums import CapPrices
from service.ledger.journal.entry_texts import NOTHING, PriceKey, price_key_of
from service.ledger.journal.journal import Head
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.releases.held_charges import of_held
from service.ledger.spending import spending
from service.ledger.spending.spending_rows import FEW, Subplans
from service.ledger.spending.subplans import charged_to, subplans_of
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Hold, Release
from service.privacy.accounting import effort
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import condense

_MOST_HOLDS = 1000  # that a new cap counts one by one, in its entry and in their rows
_SHORT = 1 << 16  # characters of plans that are parsed under the lock
_FEW_ROWS, _FEW_CHARACTERS = 5000, 1 << 22  # of spending that are read under the lock
_MOST_SENT = 1 << 17  # numbers and parts that another process sends back: all requests wait while they are read
_MOMENT = 300.0  # units of work under the lock, about milliseconds of one core
_ADDED, _AT_ORDER = 0.004, 0.00002  # milliseconds in which one price is added, and for each of its orders


class EarlierPrices(NamedTuple):
    """The prices of earlier releases under a new cap.

    Attributes:
        committed: of all releases that are committed.
        held: of each release that is held and not free under the cap, in the order of their ids.
    """

    committed: PriceKey
    held: CapPrices


class _Charged(NamedTuple):
    """The releases that an account counts, by their parts.

    Attributes:
        committed: the parts of all committed releases.
        held: the parts of each release that is held, by its id.
    """

    account: AccountRecord
    committed: Subplans
    held: dict[str, Subplans]

    @property
    def stated(self) -> bool:
        """True if each mechanism of each release had to have a statement."""
        return promised_since_opening(self.account.caps)


class EarlierReleases:
    """The releases of one account, as they were last counted under new caps.

    Args:
        most_work: the largest estimate of work before the lock, in about milliseconds.
    """

    def __init__(self, most_work: float = math.inf) -> None:
        """Start without any."""
        self._most_work = most_work
        self._known: KnownPrices = {}
        self._of_held: dict[str, Subplans] = {}  # the parts of held releases, by id
        self._head: Head | None = None
        self._found: dict[str, EarlierPrices] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the members for pickle, without what is only useful for later releases where that is much."""
        size = sum(1 + len(price.quanta) for price in self._known.values()) + sum(map(len, self._of_held.values()))
        return vars(self) if size <= _MOST_SENT else vars(self) | {"_known": {}, "_of_held": {}}

    def is_counted(self, account: AccountRecord, caps: Iterable[Cap]) -> bool:
        """Return whether all that the account has was counted under these caps."""
        return all(self._head == account.head and cap.tag in self._found for cap in caps)

    def counted_before_lock(
        self,
        database: Database,
        name: str,
        caps: Sequence[Cap],
        elsewhere: "Callable[[], EarlierReleases] | None" = None,
    ) -> "EarlierReleases":
        """Return an account's releases, counted under new caps; the transaction that reads them ends before that.

        Args:
            elsewhere: counts them in another process, which is asked where this takes long; None: there is none.

        Raises:
            Altered: spending, a hold or a plan is not as the service wrote it.
            Conflict: too many releases are held, or pricing them takes too much work.
        """
        characters = math.inf if elsewhere is None else _SHORT
        few = (_FEW_ROWS, _FEW_CHARACTERS) if self._known else (FEW, _SHORT)
        with database.read() as connection:
            account = accounts.read_account(connection, name)
            here = elsewhere is None or self._is_read_quickly(connection, account, *few)
            charged = self._read(connection, account) if here else None
        work = math.inf if charged is None else self._work(charged, caps, characters)
        if elsewhere is not None and work > effort.LIGHT:
            return elsewhere()
        if work > self._most_work:
            raise Conflict(
                "pricing the account's earlier releases under the new caps takes too much work:"
                f" expected at most {self._most_work:.0f} units (about milliseconds), got about {work:.0f}"
            )
        if charged is not None:
            self._price(charged, caps)
        return self

    def count(self, connection: Connection, account: AccountRecord, caps: Sequence[Cap]) -> Mapping[str, EarlierPrices]:
        """Return what new caps of a locked account count, by tag.

        Raises:
            Altered, Conflict: as ``counted_before_lock``.
            Unavailable: too much came since it was last counted, and others wait for the lock.
        """
        if self.is_counted(account, caps):
            return self._found
        if not self._is_read_quickly(connection, account, _FEW_ROWS, _FEW_CHARACTERS):
            raise _changed()
        charged = self._read(connection, account)
        if self._work(charged, caps, _SHORT) > _MOMENT:
            raise _changed()
        self._price(charged, caps)
        return self._found

    def _price(self, charged: _Charged, caps: Sequence[Cap]) -> None:
        neighbouring, stated = charged.account.neighbouring, charged.stated

        def price(cap: Cap, subplans: Subplans) -> PriceKey:
            asked = price_of_earlier(subplans, cap, neighbouring, stated=stated, known=self._known)
            return price_key_of(write_price(asked))

        for cap in caps:
            of_held = ((release, price(cap, subplans)) for release, subplans in charged.held.items())
            not_free = tuple((release, amount) for release, amount in of_held if amount != NOTHING)
            self._found[cap.tag] = EarlierPrices(price(cap, charged.committed), not_free)
        self._head = charged.account.head

    def _work(self, charged: _Charged, caps: Sequence[Cap], characters: float) -> float:
        """Estimate the work of pricing, in about milliseconds; infinite if that takes parsing more than so much."""
        counted, stated = [charged.committed, *charged.held.values()], charged.stated
        unknown = {
            (subplan, cap.tag): cap
            for cap in caps
            for subplans in counted
            for subplan in subplans
            if not is_known(self._known, subplan, cap, stated=stated)
        }
        if sum(len(subplan) for subplan, _ in unknown) > characters:
            return math.inf
        added = sum(map(len, counted)) * sum(_ADDED + _AT_ORDER * len(cap.weights.orders) for cap in caps)
        parts = ((earlier_part(subplan, cap, stated=stated), cap) for (subplan, _), cap in unknown.items())
        priced = ((condense(part), len(cap.weights.orders)) for part, cap in parts if part is not None)
        return added + sum(effort.of_price(part, orders) + effort.of_proofs(part) for part, orders in priced)

    def _is_read_quickly(self, connection: Connection, account: AccountRecord, rows: int, characters: int) -> bool:
        query = select(func.sum(func.length(Release.plan))).join(Hold, Hold.release_id == Release.id)
        query = query.where(Hold.account_id == account.id, Release.id.not_in(self._of_held))
        if (connection.execute(query).scalar() or 0) > _SHORT:
            return False
        return spending.is_read_quickly(connection, account, rows, characters)

    def _read(self, connection: Connection, account: AccountRecord) -> _Charged:
        """Return what an account has charged.

        The rows of holds alone do not decide what is held: servers may delete them. Their parts must be those that the
        account's spending holds.

        Raises:
            Altered: spending, a hold or a plan is not as the service wrote it, or a hold was removed or put back.
            Conflict: too many releases are held.
        """
        committed, reserved = spending.counts(connection, account)
        holds = dict(_holds(connection, account))
        for release in holds.keys() - self._of_held.keys():
            plan, tags = release_rows.sealed_plan_and_tags(connection, release)
            self._of_held[release] = subplans_of(read_plan(json.loads(plan)), json.loads(tags))
        found: Counter[str] = Counter()
        for release, periods in holds.items():
            found.update(charged_to(self._of_held[release], periods))
        if found != reserved:
            raise Altered("what the account holds", f"the rows of holds, of account {account.name!r},")
        return _Charged(account, committed, {release: self._of_held[release] for release in holds})


def _changed() -> Unavailable:
    return Unavailable("the account's releases changed while they were counted: try again", retry_after=1)


def _holds(connection: Connection, account: AccountRecord) -> Iterator[tuple[str, str | None]]:
    """Yield the ids of the releases that are held in an account, in their order, with the periods that they charge.

    Raises:
        Altered: a hold is not as the service wrote it, or its release was settled.
        Conflict: they are too many.
    """
    query = select(*reservation_rows.COLUMNS, Release.state).join(Release, Release.id == Hold.release_id)
    query = query.where(Hold.account_id == account.id)
    rows = connection.execute(query.order_by(Hold.release_id).limit(_MOST_HOLDS + 1)).all()
    if len(rows) > _MOST_HOLDS:
        raise Conflict(
            f"more than {_MOST_HOLDS} releases are reserved or proposed: settle some of them before setting a new cap"
        )
    for row in rows:
        reservation_rows.require_seal(connection, of_held(row))
        yield row.release_id, row.periods
