"""The journal replayed: what an account was at any of its entries."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection

from service.ledger import budgets, journal, spending
from service.ledger.accounts import AccountRecord
from service.ledger.journal import Head, JournalEntry
from service.ledger.releases import expires
from service.ledger.spending import Subplans
from service.privacy.filter import Price, Totals, add, subtract
from service.privacy.notation import read_plan

_PAGE = 500


@dataclass(frozen=True, slots=True)
class HeldCharge:
    """What the journal says of a release that is held: what settling it takes away or makes spent."""

    price: Price
    subplans: Subplans
    expires_at: str | None  # None: not by itself


@dataclass(slots=True)
class Replay:
    """An account as its journal has it so far, entry by entry: the record, and what it committed and holds."""

    account: AccountRecord
    committed: Subplans = field(default_factory=Counter)
    held: dict[str, HeldCharge] = field(default_factory=dict)

    @property
    def reserved(self) -> Subplans:
        """The subplans of all that is held."""
        counted: Subplans = Counter()
        for charge in self.held.values():
            counted.update(charge.subplans)
        return counted

    def follow(self, entry: JournalEntry) -> None:
        """Take in the next entry."""
        content = json.loads(entry.body)["content"]
        self._account(entry.kind, content)
        if entry.release_id is not None:
            self._release(entry.kind, entry.release_id, content)
        self.account = replace(self.account, head=Head(entry.seq, entry.hash))

    def _account(self, kind: str, content: dict[str, Any]) -> None:
        if "budget" in content:
            self.account = replace(self.account, budget=budgets.read_budget(content["budget"]))
        if content.get("approval_above") is not None:
            self.account = replace(self.account, approval_above=Fraction(content["approval_above"]))
        if kind in ("account_closed", "account_reopened"):
            self.account = replace(self.account, state="closed" if kind == "account_closed" else "open")

    def _release(self, kind: str, release_id: str, content: dict[str, Any]) -> None:
        match kind:
            case "committed" | "reserved" | "proposed" if "price" in content:
                self._charge(kind, release_id, content)
            case "approved" if content["to"] == "reserved":
                pass
            case "approved" | "committed":
                self.committed.update(self.held.pop(release_id).subplans)
            case "voided" | "expired":
                totals = subtract(self.account.totals, self.held.pop(release_id).price)
                self.account = replace(self.account, totals=totals, releases=self.account.releases - 1)

    def _charge(self, kind: str, release_id: str, content: dict[str, Any]) -> None:
        price, plan = budgets.read_price(content["price"]), read_plan(content["plan"])
        totals = add(self.account.totals, price)
        self.account = replace(self.account, totals=totals, releases=self.account.releases + 1)
        subplans = spending.subplans_of(plan, content["tags"])
        if kind == "committed":
            self.committed.update(subplans)
        else:
            ends = content["expires_at"] if expires(plan) else None
            self.held[release_id] = HeldCharge(price, subplans, ends)


def replay(connection: Connection, account: AccountRecord, until: int) -> Replay:
    """The account right after entry ``until``, from nothing but its journal.

    At the head this gives the stored totals bit for bit: they are sums of the journalled prices.
    """
    opened = replace(
        account,
        totals=Totals(),
        state="open",
        head=journal.BEFORE_FIRST,
        approval_above=None,
        next_expiry=None,
        releases=0,
    )
    moment = Replay(opened)
    while moment.account.head.seq < until:
        seq = moment.account.head.seq
        page = journal.entries(connection, account.id, seq, min(_PAGE, until - seq))
        if not page:
            break
        for entry in page:
            moment.follow(entry)
    times = (charge.expires_at for charge in moment.held.values() if charge.expires_at is not None)
    moment.account = replace(moment.account, next_expiry=min(times, default=None))
    return moment
