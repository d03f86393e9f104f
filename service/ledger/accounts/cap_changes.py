"""Changes of caps on tags by stewards: what a new cap counts of earlier releases, and the entry that sets it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, select

from service.errors import BudgetExceeded, Conflict, Fault, InvalidInput
from service.ledger.accounts import accounts, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.caps import MOST_CAPS, OPENING, Cap, StatedCap, read_prices, write_prices
from service.ledger.accounts.earlier_releases import EarlierReleases
from service.ledger.journal.account_state import ProposedChange
from service.ledger.journal.charge_sums import CapPrices
from service.ledger.journal.entries import CapsChanged, ChangedCap, ChangeProposed
from service.ledger.journal.entry_texts import PriceKey, price_of_key
from service.ledger.releases import reservation_rows
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Hold
from service.ledger.storage.transaction import secret_of
from service.privacy.accounting.pricing import ACCOUNTANT
from service.privacy.accounting.privacy_filter import (
    Budget,
    Definition,
    Weights,
    is_greater,
    open_weights,
    order_rule,
    spent_of_cap,
)
from service.privacy.accounting.totals import Totals, add_price
from service.privacy.numerics.numbers import exact_text

_ROUNDS = 5  # of counting before the lock


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
        earlier: the earlier releases, counted under new caps.
        elsewhere: counts them in another process where that takes long; None: there is none.
        weights: those of new caps by tag, so that those which were found before a lock are not found again under it.
    """

    stated: Sequence[StatedCap]
    earlier: EarlierReleases = field(default_factory=EarlierReleases)
    elsewhere: Callable[[], EarlierReleases] | None = None
    weights: dict[str, Weights] = field(default_factory=dict)

    def permits_more(self, account: AccountRecord) -> bool:
        """Return whether a cap permits more than before."""
        present = {cap.tag: cap.budget for cap in account.caps}
        return any(one.tag in present and is_greater(one.budget, present[one.tag]) for one in self.stated)

    def needs_no_steward(self, account: AccountRecord, waits: ProposedChange | None) -> bool:
        """Return whether others may state the change: it sets no new cap, or it is the change that waits."""
        present = {cap.tag: cap.budget for cap in account.caps}
        changed = [one for one in self.stated if present.get(one.tag) != one.budget]
        if all(one.tag in present for one in changed):
            return True
        proposal = ChangeProposed(caps=tuple(sorted(changed, key=lambda cap: cap.tag)))
        return waits is not None and waits.change == proposal.change()

    def prepare(self, database: Database, name: str) -> None:
        """Find what new caps count and how they admit, before the account is locked, since this takes long.

        Releases that come meanwhile are counted in further rounds, each of which takes less time.

        Raises:
            Conflict: too many releases are held to count them under a new cap, or counting them takes too much work.
            TooManyRequests, Unavailable: no other process can count them now.
        """
        for _ in range(_ROUNDS):
            with database.read() as connection:
                account = accounts.read_account(connection, name)
            present = {cap.tag: cap for cap in account.caps}
            _require_unlike(self.stated, present)
            self._require_countable(account)
            for one in self.stated:
                cap = present.get(one.tag) or self._new_cap(account, one)
                if cap.weights.shares and one.budget.definition is Definition.APPROXIMATE:
                    order_rule(one.budget, cap.weights)
            new = self._new_caps(account)
            if self.earlier.is_counted(account, new):
                return
            self.earlier = self.earlier.counted_before_lock(database, name, new, self.elsewhere)

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
        counted = self.earlier.count(connection, account, self._new_caps(account))
        for number, one in enumerate(self.stated):
            old = present.get(one.tag)
            if old is not None and old.budget == one.budget:
                continue
            if old is None:
                cap, (committed, held) = self._new_cap(account, one), counted[one.tag]
                cap = replace(cap, totals=_sum(committed, held))
                changed.append(ChangedCap(one.tag, one.budget, cap.weights, committed, held))
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
            Conflict: the cap is new, and the account has allotted.
        """
        if account.allotted is not None and {one.tag for one in self.stated} - {cap.tag for cap in account.caps}:
            raise no_caps_beside_allotments()

    def _new_caps(self, account: AccountRecord) -> list[Cap]:
        present = {cap.tag for cap in account.caps}
        return [self._new_cap(account, one) for one in self.stated if one.tag not in present]

    def _new_cap(self, account: AccountRecord, stated: StatedCap) -> Cap:
        weights = self.weights.get(stated.tag)
        if weights is None:
            weights = self.weights[stated.tag] = open_weights(stated.budget)
        return Cap(stated.tag, stated.budget, weights, account.head.seq + 1)


def _sum(counted: PriceKey, held: CapPrices) -> Totals:
    totals = Totals()
    for amount in (counted, *(amount for _, amount in held)):
        totals = add_price(totals, price_of_key(amount))
    return totals


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
        BudgetExceeded: the cap is below it.
    """
    failures = []
    used = spent_of_cap(cap.budget, cap.weights, cap.totals)
    if used is None or used > cap.budget.cap:
        new, stated = cap.budget.cap, exact_text(cap.budget.cap)
        failures.append(
            accounts.overrun(account.name, cap.budget, cap.budget.cap_on, used, new, stated=stated, tag=cap.tag)
        )
    if cap.totals.delta > cap.budget.declared_delta:
        given = cap.totals.delta, cap.budget.declared_delta
        stated = exact_text(cap.budget.declared_delta)
        failures.append(accounts.overrun(account.name, cap.budget, "delta", *given, stated=stated, tag=cap.tag))
    if failures:
        raise BudgetExceeded(failures, pointer=pointer, of_change=True)
