"""Changes of caps on tags by stewards: what a new cap counts of earlier releases, and the entry that sets it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, select

from service.errors import BudgetExceeded, Conflict, Fault, InvalidInput, Unavailable
from service.ledger.accounts import accounts, lines, spending
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import write_price
from service.ledger.accounts.caps import (
    MOST_CAPS,
    OPENING,
    Cap,
    KnownPrices,
    StatedCap,
    price_of_earlier,
    promised_since_opening,
    read_prices,
    write_prices,
)
from service.ledger.accounts.spending_rows import Subplans
from service.ledger.accounts.subplans import subplans_of
from service.ledger.journal.charge_sums import CapPrices
from service.ledger.journal.entries import CapsChanged, ChangedCap
from service.ledger.journal.entry_texts import NOTHING, PriceKey, price_key_of, price_of_key
from service.ledger.journal.journal import Head
from service.ledger.releases import reservation_rows
from service.ledger.storage.tables import Hold, Release
from service.ledger.storage.transaction import secret_of
from service.privacy.accounting.pricing import ACCOUNTANT
from service.privacy.accounting.privacy_filter import (
    Budget,
    Definition,
    Weights,
    open_weights,
    order_rule,
    spent_of_cap,
)
from service.privacy.accounting.totals import Totals, add_price
from service.privacy.plans.notation import read_plan

_MOST_HOLDS = 1000  # that a new cap counts one by one, in its entry and in their rows
_FEW = 20  # reservations whose plans are read under the lock, as they came while the others were priced
_MANY = 2000  # distinct charged plans; more are counted before the lock alone

HeldPrices = dict[tuple[str, str], PriceKey]
"""Prices of held releases under new caps, by tag and release."""


def opened_caps(stated: Sequence[StatedCap]) -> tuple[Cap, ...]:
    """Return the caps with which an account is opened, in the order of their tags.

    Raises:
        InvalidInput: a tag has two caps, or they are too many.
    """
    _require_unlike(stated, {})
    return tuple(Cap(one.tag, one.budget, open_weights(one.budget), OPENING) for one in sorted(stated))


def no_caps_beside_allotments() -> Conflict:
    """Return the refusal of a new cap on an account that has allotted: it would count releases that nothing prices."""
    return Conflict(
        "the account has allotted some of its budget, and a new cap would have to count what is spent there: open an"
        " account with the cap, and allot from that"
    )


def opened_members(caps: Sequence[Cap]) -> tuple[ChangedCap, ...] | None:
    """Return the member of the entry that opens an account with these caps; None without caps."""
    return tuple(ChangedCap(cap.tag, cap.budget, cap.weights) for cap in caps) or None


def _require_unlike(stated: Sequence[StatedCap], present: dict[str, Cap]) -> None:
    tags = [one.tag for one in stated]
    faults = [
        Fault(f"/caps/{number}/tag", "expected a tag that no other of these caps has")
        for number, tag in enumerate(tags)
        if tag in tags[:number]
    ]
    if len(present.keys() | set(tags)) > MOST_CAPS:
        number = len(present.keys() | set(tags))
        faults.append(Fault("/caps", f"expected at most {MOST_CAPS} caps of an account, got {number} with its present"))
    if faults:
        raise InvalidInput(faults)


@dataclass(slots=True)
class CapsChange:
    """A change of caps that a steward states.

    Attributes:
        stated: the caps that are set; others stay.
        known: prices of earlier releases, so that those which were found before a lock are not found again under it.
        weights: those of new caps by tag, likewise.
        held: prices of held releases, likewise.
        counted: prices of the committed releases under new caps, by tag, and the account's head when they were counted.
    """

    stated: Sequence[StatedCap]
    known: KnownPrices = field(default_factory=dict)
    weights: dict[str, Weights] = field(default_factory=dict)
    held: HeldPrices = field(default_factory=dict)
    counted: dict[str, tuple[Head, PriceKey]] = field(default_factory=dict)

    def frees(self, account: AccountRecord) -> bool:
        """Return whether a cap permits more than before."""
        present = {cap.tag: cap.budget for cap in account.caps}
        return any(one.tag in present and is_greater(one.budget, present[one.tag]) for one in self.stated)

    def prepare(self, connection: Connection, account: AccountRecord) -> None:
        """Find what new caps count and how they admit, before the account is locked, since this takes long.

        Raises:
            Conflict: too many releases are held to count them under a new cap.
        """
        present = {cap.tag: cap for cap in account.caps}
        self._require_countable(account)
        new: list[Cap] = []
        for one in self.stated:
            cap = replace(present[one.tag], budget=one.budget) if one.tag in present else self._new_cap(account, one)
            if cap.weights.shares and cap.budget.definition is Definition.APPROXIMATE:
                order_rule(cap.budget, cap.weights)
            if one.tag not in present:
                new.append(cap)
        self._count(connection, account, new)

    def apply(
        self, connection: Connection, account: AccountRecord, at: str
    ) -> tuple[CapsChanged, AccountRecord] | None:
        """Return the entry of the change, and the locked account after it; None if it changes nothing.

        Raises:
            BudgetExceeded: a cap is below what is spent and held.
            Conflict: too many releases are held to count them under a new cap, or the account has allotted.
            InvalidInput: a cap changes more than figures, or the caps are too many.
            ReservationsDue: a cap may hold once expired reservations are released.
        """
        present = {cap.tag: cap for cap in account.caps}
        _require_unlike(self.stated, present)
        self._require_countable(account)
        lines.refuse_few_due(connection, [account], at)
        changed: list[ChangedCap] = []
        after = dict(present)
        new = [self._new_cap(account, one) for one in self.stated if one.tag not in present]
        held = self._count(connection, account, new, most=_FEW)
        for number, one in enumerate(self.stated):
            old = present.get(one.tag)
            if old is not None and old.budget == one.budget:
                continue
            if old is None:
                cap, counted = self._new_cap(account, one), self.counted[one.tag][1]
                prices = tuple((release, self.held[one.tag, release]) for release in held)
                of_held = tuple(price for price in prices if price[1] != NOTHING)
                cap = replace(cap, totals=_sum(counted, of_held))
                changed.append(ChangedCap(one.tag, one.budget, cap.weights, counted, of_held))
            else:
                require_same_kind(old.budget, one.budget, f"/caps/{number}/budget", "cap's")
                cap = replace(old, budget=one.budget)
                changed.append(ChangedCap(one.tag, one.budget))
            try:
                _require_room(account, cap, f"/caps/{number}/budget")
            except BudgetExceeded:
                lines.refuse_due([account], at)
                raise
            after[one.tag] = cap
        if not changed:
            return None
        entry = CapsChanged(accountant=ACCOUNTANT, caps=tuple(sorted(changed, key=lambda cap: cap.tag)))
        return entry, replace(account, caps=tuple(after[tag] for tag in sorted(after)))

    def _require_countable(self, account: AccountRecord) -> None:
        """Refuse a new cap on an account that has allotted.

        Raises:
            Conflict: it is one.
        """
        if account.allotted is not None and {one.tag for one in self.stated} - {cap.tag for cap in account.caps}:
            raise no_caps_beside_allotments()

    def _count(
        self, connection: Connection, account: AccountRecord, caps: Sequence[Cap], most: int = _MOST_HOLDS
    ) -> list[str]:
        """Find the prices of the committed releases and of each held one under new caps, unless they are known.

        Args:
            most: reservations whose plans may be read.

        Returns:
            The ids of the held releases, in their order.

        Raises:
            Conflict: too many releases are held.
            Unavailable: too much came since most of it was counted.
        """
        if not caps:
            return []
        if any(self.counted.get(cap.tag, (None,))[0] != account.head for cap in caps):
            committed, _ = spending.counts(connection, account)
            if self.counted and len(committed) > _MANY:
                raise Unavailable("the account's releases changed while they were counted: try again", retry_after=1)
            for cap in caps:
                self.counted[cap.tag] = account.head, self._price(account, cap, committed)
        held = _held(connection, account)
        unknown = [release for release in held if any((cap.tag, release) not in self.held for cap in caps)]
        if len(unknown) > most:
            raise Unavailable("releases were reserved while the others were counted: try again", retry_after=1)
        for release, subplans in _subplans_of(connection, unknown):
            for cap in caps:
                self.held[cap.tag, release] = self._price(account, cap, subplans)
        return held

    def _new_cap(self, account: AccountRecord, stated: StatedCap) -> Cap:
        weights = self.weights.get(stated.tag)
        if weights is None:
            weights = self.weights[stated.tag] = open_weights(stated.budget)
        return Cap(stated.tag, stated.budget, weights, account.head.seq + 1)

    def _price(self, account: AccountRecord, cap: Cap, subplans: Subplans) -> PriceKey:
        stated = promised_since_opening(account.caps)
        amount = price_of_earlier(subplans, cap, account.neighbouring, stated=stated, known=self.known)
        return price_key_of(write_price(amount))


def _sum(counted: PriceKey, held: CapPrices) -> Totals:
    totals = Totals()
    for amount in (counted, *(amount for _, amount in held)):
        totals = add_price(totals, price_of_key(amount))
    return totals


def _held(connection: Connection, account: AccountRecord) -> list[str]:
    """Return the ids of the releases that are held in an account, or in those under it, in their order.

    Raises:
        Altered: a hold is not as the service wrote it.
        Conflict: they are too many.
    """
    query = select(*reservation_rows.COLUMNS).where(Hold.account_id == account.id)
    rows = connection.execute(query.order_by(Hold.release_id).limit(_MOST_HOLDS + 1)).all()
    if len(rows) > _MOST_HOLDS:
        raise Conflict(
            f"more than {_MOST_HOLDS} releases are reserved or proposed: settle some of them before setting a new cap"
        )
    for row in rows:
        reservation_rows.require_seal(connection, row)
    return [row.release_id for row in rows]


def _subplans_of(connection: Connection, held: Sequence[str]) -> Iterator[tuple[str, Subplans]]:
    """Yield these releases with the parts that spending counts, in the order of their ids."""
    query = select(Release.id, Release.plan, Release.tags).where(Release.id.in_(held)).order_by(Release.id)
    with connection.execute(query.execution_options(yield_per=_FEW)) as rows:
        for row in rows:
            yield row.id, subplans_of(read_plan(json.loads(row.plan)), json.loads(row.tags))


def save_holds(connection: Connection, account: AccountRecord, entry: CapsChanged) -> None:
    """Write what new caps count of held releases into the rows of their holds."""
    added: dict[str, dict[str, PriceKey]] = {}
    for cap in entry.caps:
        for release, amount in cap.held:
            added.setdefault(release, {})[cap.tag] = amount
    if not added:
        return
    query = select(*reservation_rows.COLUMNS).where(Hold.account_id == account.id, Hold.release_id.in_(added))
    for row in connection.execute(query).all():
        reservation_rows.require_seal(connection, row)
        prices = sorted((dict(read_prices(row.caps)) | added[row.release_id]).items())
        reservation_rows.save(connection, secret_of(connection), {**row._mapping, "caps": write_prices(tuple(prices))})


def is_greater(new: Budget, old: Budget) -> bool:
    """Return whether a budget permits more than another of its kind."""
    return new.cap > old.cap or new.delta > old.delta or new.declared_delta > old.declared_delta


def require_same_kind(old: Budget, new: Budget, pointer: str, whose: str) -> None:
    """Refuse a change of anything but figures: the admission weights were fixed for this definition, order and reserve.

    A change of ``declared_delta`` depending on past spending would make the filter depend on its path.

    Args:
        whose: the owner of the budget, in words, for the detail.

    Raises:
        InvalidInput: the definition, order or reserve is another.
    """
    if new.definition is not old.definition:
        raise InvalidInput.at(f"{pointer}/definition", f"expected the {whose} definition, {old.definition.value}")
    if new.alpha != old.alpha:
        raise InvalidInput.at(f"{pointer}/alpha", f"expected the {whose} order")
    if old.definition is Definition.APPROXIMATE and new.declared_delta != old.declared_delta:
        raise InvalidInput.at(f"{pointer}/declared_delta", f"expected the {whose} declared_delta")


def _require_room(account: AccountRecord, cap: Cap, pointer: str) -> None:
    """Refuse a cap below what is spent and held.

    Raises:
        BudgetExceeded: it is.
    """
    failures = []
    used = spent_of_cap(cap.budget, cap.weights, cap.totals)
    if used is None or used > cap.budget.cap:
        failures.append(
            accounts.overrun(account.name, cap.budget, cap.budget.cap_on, used, cap.budget.cap, tag=cap.tag)
        )
    if cap.totals.delta > cap.budget.declared_delta:
        given = cap.totals.delta, cap.budget.declared_delta
        failures.append(accounts.overrun(account.name, cap.budget, "delta", *given, tag=cap.tag))
    if failures:
        raise BudgetExceeded(failures, pointer=pointer, of_change=True)
