"""The journal replayed: what an account was at any of its entries, from nothing else.

Balances of the past, verification, recomputation and imports follow a chain by the one class here. It
keeps what is held and what is distinct, never a release: a chain of a million entries of a thousand
distinct plans is a thousand counts.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, select

from service.ledger import budgets, journal
from service.ledger.accounts import AccountRecord, ProposedChange
from service.ledger.hold_rows import expires
from service.ledger.journal import BEFORE_FIRST, Actor, Broken, Head, JournalEntry
from service.ledger.metadata import Metadata, check_metadata
from service.ledger.spending_rows import Subplans
from service.ledger.streams import stream
from service.ledger.tables import Entry
from service.ledger.texts import (
    NOTHING,
    Amount,
    Subject,
    amount_of,
    read_amount,
    read_text,
    registered,
    subject_of,
    subplans_of,
)
from service.privacy.filter import Budget, Totals, Weights, add_all, plus
from service.privacy.plan import Neighbouring

_DISTINCT = 4096  # amounts and plans that are counted before they are added up
_VOLUME = 1 << 26  # characters of plans, likewise

Said = dict[str, Any]
"""What a journal entry says."""


@dataclass(slots=True)
class Held:
    """A release that is proposed or reserved."""

    state: str
    amount: Amount
    subject: Subject
    expires_at: str | None
    own: bool  # registered in this account, and not in one under it
    by: Actor  # who registered it


class _Sum:
    """Totals of charges; equal ones are counted before they are added up."""

    def __init__(self) -> None:
        self._totals = Totals()  # but for what is counted
        self._counts: Counter[Amount] = Counter()

    def add(self, amount: Amount, count: int = 1) -> None:
        """So many more; fewer where the count is below 0."""
        self._counts[amount] += count
        if len(self._counts) > _DISTINCT:
            self._add_up()

    def _add_up(self) -> None:
        self._totals = add_all(self._totals, ((read_amount(amount), n) for amount, n in self._counts.items() if n))
        self._counts.clear()

    @property
    def totals(self) -> Totals:
        """All of them.

        Raises:
            TypeError, ValueError: one is no price.
        """
        if self._counts:
            self._add_up()
        return self._totals


class Chain:
    """An account as its journal has it so far; it follows one entry after the other.

    Without ``subplans`` it counts what was spent and not on what, which of unlike plans is most of the work.
    """

    def __init__(self, name: str, *, subplans: bool = True) -> None:
        self.name = name
        self._counts_subplans = subplans
        self.head = BEFORE_FIRST
        self.opened: Said = {}  # the first entry
        self.neighbouring = Neighbouring.ADD_REMOVE
        self.weights = Weights()
        self.budget: Budget | None = None
        self.state = "open"
        self.approval_above: str | None = None
        self.metadata: Metadata = {}  # the account's own
        self.proposed: ProposedChange | None = None
        self.committed = 0  # releases, with those of the accounts under it
        self.own_committed = 0  # its own
        self.held: dict[str, Held] = {}
        self.amount: Amount = NOTHING  # of the last entry that registered a release
        self.subject: Subject = ("", ())  # likewise
        self._committed, self._holds = _Sum(), _Sum()  # what they cost, and what those that are held do
        self._spent: Subplans = Counter()  # subplans, but for those of what is counted in _subjects
        self._subjects: Counter[Subject] = Counter()
        self._volume = 0  # characters of the plans that are counted

    def follow(self, said: Said, head: Head) -> str | None:
        """Take the next entry, and return the state that it brings its release to; None where it brings none.

        Raises:
            Broken: an entry of this kind does not say this here.
        """
        try:
            state = self._follow(said)
        except Broken:  # a ValueError with a reason of its own
            raise
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
            raise Broken("the entry does not say what one of its kind says") from None
        self.head = head
        return state

    def commit(self, amount: Amount, subject: Subject, head: Head, *, own: bool) -> None:
        """The same for the entry of a release that was registered at once, here or in an account below."""
        self._commit(amount, subject, own=own)
        self.head = head

    def _follow(self, said: Said) -> str | None:
        kind, content = said["kind"], said["content"]
        if (kind == "account_opened") != (self.head == BEFORE_FIRST):
            raise Broken("an account is opened by its first entry, and by no other")
        match kind:
            case "committed" | "reserved" | "proposed" if "plan" in content:
                return self._register(said, kind, content)
            case "committed" | "approved" | "voided" | "expired":
                return self._step(said["release"], kind, content)
            case "repriced":
                self._reprice(said["release"], amount_of(content["was"]), amount_of(content["price"]))
            case "account_opened":
                self._open(said)
            case "budget_changed" | "account_closed" | "account_reopened" | "metadata_changed" | "described":
                self._change(kind, content, said["release"])
            case "change_proposed":
                self._propose(said)
            case "drawn":
                if said["release"] in self.held:
                    raise Broken("the release is drawn from before it is committed")
            case "refused":
                pass
            case _:
                raise Broken("the entry is of no known kind")
        return None

    def _open(self, said: Said) -> None:
        content = said["content"]
        self.opened = said
        self.neighbouring = Neighbouring(content["neighbouring"])
        self.weights = budgets.read_weights(json.dumps(content["admission"]))
        self.budget = budgets.read_budget(content["budget"])
        self.approval_above = content.get("approval_above")

    def _propose(self, said: Said) -> None:
        if "budget" in said["content"]:
            budgets.read_budget(said["content"]["budget"])
        elif said["content"] != {"state": "open"}:
            raise Broken("the entry does not say what one of its kind says")
        self.proposed = ProposedChange.said(said)

    def _change(self, kind: str, content: Said, release: str | None) -> None:
        if kind in ("budget_changed", "account_closed", "account_reopened"):
            self.proposed = None
        match kind:
            case "budget_changed":
                self.budget = budgets.read_budget(content["budget"])
            case "metadata_changed":
                self.approval_above = content.get("approval_above", self.approval_above)
            case "described":
                metadata = check_metadata(content["metadata"])
                self.metadata = metadata if release is None else self.metadata
            case _:
                self.state = "closed" if kind == "account_closed" else "open"

    def _register(self, said: Said, kind: str, content: Said) -> str:
        release = said["release"]
        self.amount = amount = amount_of(content["price"])
        self.subject = subject = subject_of(content)
        own = content.get("origin") is None
        if kind == "committed":
            self._commit(amount, subject, own=own)
        elif release in self.held:
            raise Broken("the release is held already")
        else:
            read_amount(amount)
            self._holds.add(amount)
            by = Actor(said["actor"], said.get("key"))
            self.held[release] = Held(kind, amount, subject, content["expires_at"], own, by)
        return kind

    def _commit(self, amount: Amount, subject: Subject, *, own: bool) -> None:
        self.committed += 1
        self.own_committed += own
        self._committed.add(amount)
        if self._counts_subplans:
            self._subjects[subject] += 1
            if self._subjects[subject] == 1:
                self._volume += len(subject[0])
            if len(self._subjects) > _DISTINCT or self._volume > _VOLUME:
                self._add_up_subjects()

    def _step(self, release: str, kind: str, content: Said) -> str:
        """Follow a step of what is held: only an approval takes a proposal on, and all else but it takes one back."""
        held = self.held.get(release)
        if held is None:
            raise Broken("the release is not held")
        state = content["to"] if kind == "approved" else kind
        if kind == "approved" and (held.state != "proposed" or state not in ("reserved", "committed")):
            raise Broken("what is approved was not proposed, or comes to a state that no approval brings it to")
        if kind == "committed" and held.state == "proposed":
            raise Broken("the release was proposed, and is committed without an approval")
        if state == "reserved":
            held.state = state
            return state
        del self.held[release]
        self._holds.add(held.amount, -1)
        if state == "committed":
            self._commit(held.amount, held.subject, own=held.own)
        return state

    def _reprice(self, release: str, was: Amount, amount: Amount) -> None:
        read_amount(was), read_amount(amount)
        held = self.held.get(release)
        if held is not None and held.amount != was:
            raise Broken("the release had another price")
        if held is not None:
            held.amount = amount
        costs = self._committed if held is None else self._holds
        costs.add(was, -1)
        costs.add(amount)

    def _add_up_subjects(self) -> None:
        for subject, count in self._subjects.items():
            for subplan, times in subplans_of(subject).items():
                self._spent[subplan] += times * count
        self._subjects.clear()
        self._volume = 0

    @property
    def stands(self) -> Budget:
        """The budget.

        Raises:
            Broken: no entry has opened the account.
        """
        if self.budget is None:
            raise Broken(journal.MISSING)
        return self.budget

    @property
    def committed_totals(self) -> Totals:
        """The sum of what is committed."""
        return self._committed.totals

    @property
    def totals(self) -> Totals:
        """The sum of what is committed and held."""
        return plus(self._committed.totals, self._holds.totals)

    @property
    def releases(self) -> int:
        """How many are committed or held, with those of the accounts under it."""
        return self.committed + len(self.held)

    @property
    def own_releases(self) -> int:
        """How many of them were registered in this account."""
        return self.own_committed + sum(held.own for held in self.held.values())

    @property
    def next_expiry(self) -> str | None:
        """When the first of what is held ends by itself."""
        return min((ends for held in self.held.values() if (ends := ends_by_itself(held)) is not None), default=None)

    @property
    def spent(self) -> Subplans:
        """The subplans of what is committed."""
        self._add_up_subjects()
        return self._spent

    @property
    def reserved(self) -> Subplans:
        """The subplans of what is held."""
        subplans: Subplans = Counter()
        for held in self.held.values():
            subplans.update(subplans_of(held.subject))
        return subplans


def ends_by_itself(held: Held) -> str | None:
    """When a hold ends although nobody says so; never where something may have been published unseen."""
    if held.expires_at is None or not expires(read_text(held.subject[0])):
        return None
    return held.expires_at


@dataclass(frozen=True, slots=True)
class Moment:
    """An account as its journal had it: the record, and the subplans that it had committed and held."""

    account: AccountRecord
    committed: Subplans
    reserved: Subplans


def followed(
    connection: Connection, account: AccountRecord, chain: Chain, until: int, kinds: Collection[str] | None = None
) -> Iterator[JournalEntry]:
    """Yield each entry of an account's journal up to ``until``, after a chain followed it; with ``kinds``, of these.

    Raises:
        Altered: the journal, up to its head, is not as the service wrote it.
    """
    journal.require_chain(connection, account.id, journal.BEFORE_FIRST, account.head)
    query = select(Entry.seq, Entry.kind, Entry.release_id, Entry.body, Entry.hash)
    query = query.where(Entry.account_id == account.id, journal.up_to(Entry.seq, until)).order_by(Entry.seq)
    if kinds is not None:
        query = query.where(Entry.kind.in_(kinds))
    with ExitStack() as cursors:
        for entry in map(JournalEntry._make, stream(connection, query, cursors)):
            head = Head(entry.seq, entry.hash)
            found = registered(entry.body) if entry.kind == "committed" else None
            if found is None:
                chain.follow(json.loads(entry.body), head)
            else:
                chain.commit(found.amount, found.subject, head, own=found.own)
            yield entry


def replay(connection: Connection, account: AccountRecord, until: int) -> Moment:
    """The account right after entry ``until``, from nothing but its journal.

    At the head this gives the stored totals bit for bit: they are sums of the journalled prices.
    """
    chain = Chain(account.name)
    for _ in followed(connection, account, chain, until):
        pass
    moment = replace(as_left(account, chain), metadata=chain.metadata, proposed=chain.proposed)
    return Moment(moment, chain.spent, chain.reserved)


def as_left(account: AccountRecord, chain: Chain) -> AccountRecord:
    """An account as the entries of its journal leave its row."""
    return replace(
        account,
        budget=chain.stands,
        totals=chain.totals,
        state=chain.state,
        head=chain.head,
        approval_above=None if chain.approval_above is None else Fraction(chain.approval_above),
        next_expiry=chain.next_expiry,
        releases=chain.releases,
    )
