"""The check that the accounts above an allotted account are charged for it, with the amount that its state requires."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, select

from service.ledger.accounts import allotments
from service.ledger.accounts.allotments import AllottedSum, amount_in, amount_of, leaf_of, text_of, write_sum
from service.ledger.accounts.caps import write_prices
from service.ledger.journal import entry_texts
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.chains import UNREADABLE
from service.ledger.journal.entries import Allotted, read_text
from service.ledger.journal.entry_texts import price_key_in
from service.ledger.journal.ordered_rows import BadRow, stream
from service.ledger.storage.tables import Account, Allotment, Entry
from service.ledger.storage.transaction import secret_of
from service.privacy.accounting.privacy_filter import Budget, Weights
from service.privacy.accounting.totals import Totals
from service.privacy.mechanisms.declared import declared_in

UNFUNDED = "an account above is not charged for the allotment"
OTHER_AMOUNT = "an account above is charged for another amount than the account's cap"


class Funded(NamedTuple):
    """The facts about an account that determine the amount of its allotment."""

    name: str
    budget: Budget
    weights: Weights
    totals: Totals
    state: str

    @classmethod
    def of(cls, chain: AccountState) -> "Funded":
        """Return the facts about an account that follow from its journal."""
        return cls(chain.name, chain.current_budget, chain.weights, chain.totals, chain.state)

    def is_amount(self, plan: str) -> bool:
        """Return whether a mechanism is one with which the accounts above may be charged for the account.

        The accounts above an open account are charged for its present amount. Those above a closed account are charged
        for what it had used when it was closed: reservations that were voided since then are given back only when it
        is opened again. So the amount of a closed account may be greater than the present one, up to that of the open
        account.
        """
        asked = amount_of(self.budget, self.weights, self.totals, self.state)
        if asked is None:  # no mechanism states an infinite loss
            return False
        if plan == text_of(leaf_of(self.name, self.budget, asked)):
            return True
        try:
            leaf = declared_in(entry_texts.read_text(plan))
            if self.state != "closed" or leaf is None:
                return False
            stated = amount_in(leaf)
        except UNREADABLE:
            return False
        opened = amount_of(self.budget, self.weights, self.totals, "open") or asked
        same = plan == text_of(leaf_of(self.name, self.budget, stated))
        return same and not asked.exceeds(stated) and not stated.exceeds(opened)


def written_sum(allotted: AllottedSum | None) -> str | None:
    """Return the text of an account's column for the sum of its allotments."""
    return None if allotted is None else write_sum(allotted)


def check_funding(connection: Connection, chain: AccountState, account: Row[Any], cursors: ExitStack) -> None:
    """Check the rows of the allotments that an account is charged for, and of its own allotment above it.

    Raises:
        BadRow: a row is missing, is one too many, or does not follow from the journals.
    """
    _check_allotted(connection, chain, account, cursors)
    last, secret = chain.head.seq, secret_of(connection)
    charged = dict(_charged_above(connection, account.id)) if chain.funding is not None else {}
    query = select(*allotments.COLUMNS, Entry.body).where(Allotment.child_id == account.id)
    query = query.outerjoin(Entry, (Entry.account_id == Allotment.account_id) & (Entry.seq == Allotment.seq))
    rows = {row.account_id: row for row in connection.execute(query)}
    if rows.keys() != charged.keys():
        raise BadRow(last, UNFUNDED)
    for row in rows.values():
        if not allotments.is_sealed(secret, row):
            raise BadRow(last, "a row of allotments was not written by the service")
        if not _states_allotment(row.body, chain.name, row.plan):
            raise BadRow(last, UNFUNDED)
        if not Funded.of(chain).is_amount(row.plan):
            raise BadRow(last, OTHER_AMOUNT)


def _check_allotted(connection: Connection, chain: AccountState, account: Row[Any], cursors: ExitStack) -> None:
    last, secret, missing = chain.head.seq, secret_of(connection), set(chain.allotments)
    query = select(*allotments.COLUMNS, Account.name).outerjoin(Account, Account.id == Allotment.child_id)
    for row in stream(connection, query.where(Allotment.account_id == account.id), cursors):
        stated = chain.allotments.get(row.name)
        if stated is None or (row.plan, price_key_in(row.price), row.caps, row.seq) != (
            stated.plan,
            stated.amount,
            write_prices(stated.caps),
            stated.seq,
        ):
            raise BadRow(last, "a row of allotments does not follow from the journal")
        if not allotments.is_sealed(secret, row):
            raise BadRow(last, "a row of allotments was not written by the service")
        missing.discard(row.name)
    if missing:
        raise BadRow(last, "an allotment has no row in allotments")


def _states_allotment(body: str | None, child: str, plan: str) -> bool:
    try:
        content = None if body is None else read_text(body).content
    except UNREADABLE:
        return False
    return isinstance(content, Allotted) and (content.child, content.plan) == (child, plan)


def _charged_above(connection: Connection, account_id: int) -> Iterator[tuple[int, str]]:
    """Yield the ids and names of the accounts above an account, up to and including the nearest allotted one."""
    place = connection.execute(_PLACE, {"account": account_id}).one()
    while place.parent_id is not None:
        place = connection.execute(_PLACE, {"account": place.parent_id}).one()
        yield place.id, place.name
        if place.funding is not None:
            return


_PLACE = select(Account.id, Account.name, Account.parent_id, Account.funding).where(Account.id == bindparam("account"))


class SharedLines:
    """The accounts whose releases are charged to one account: itself, and those below that no allotment separates."""

    def __init__(self, connection: Connection, account_id: int) -> None:
        self._connection, self._account = connection, account_id
        self._known: dict[int, bool] = {account_id: True}

    def __contains__(self, account_id: object) -> bool:
        """Return whether the releases of the account with this id are charged to the one account."""
        found = self._known.get(account_id) if isinstance(account_id, int) else False
        if found is None and isinstance(account_id, int):
            place = self._connection.execute(_PLACE, {"account": account_id}).one()
            found = self._known[account_id] = place.funding is None and place.parent_id in self
        return bool(found)


class FundingAudit:
    """The check of an export's allotments, from its accounts' openings and from the ends of their journals."""

    def __init__(self) -> None:
        self._parents: dict[str, str | None] = {}
        self._funded: dict[str, Funded | None] = {}  # of allotted accounts
        self._allotted: dict[str, Mapping[str, str]] = {}  # by account: the mechanisms of its allotments

    def open(self, account: str, parent: str | None, *, allotted: bool) -> None:
        """Add the opening of an account; the accounts above it are added first."""
        self._parents[account] = parent
        if allotted:
            self._funded[account] = None

    def charges(self, origin: str, account: str) -> bool:
        """Return whether the releases of ``origin`` charge ``account``: no account between is allotted."""
        place: str | None = origin
        while place is not None and place != account:
            place = None if place in self._funded else self._parents.get(place)
        return place is not None

    def end(self, chain: AccountState) -> None:
        """Add an account with the state at the end of its journal."""
        if chain.name in self._funded:
            self._funded[chain.name] = Funded.of(chain)
        self._allotted[chain.name] = {child: one.plan for child, one in chain.allotments.items()}

    def faults(self) -> Iterator[str]:
        """Yield the faults of the allotments; all accounts must have been added with their ends."""
        charged = {(above, name) for name in self._funded for above in self._above(name)}
        stated = {(account, child) for account, allotted in self._allotted.items() for child in allotted}
        for account, child in sorted(charged ^ stated):
            yield f"the account {account!r} is not charged for the allotments of the accounts under it: {child!r}"
        for account, child in sorted(charged & stated):
            funded = self._funded[child]
            if funded is None or not funded.is_amount(self._allotted[account][child]):
                yield f"the account {account!r} is charged for another amount than the cap of {child!r}"

    def _above(self, name: str) -> Iterator[str]:
        place = self._parents[name]
        while place is not None:
            yield place
            place = None if place in self._funded else self._parents[place]
