"""The check that releases and changes of an account have the approvals that it and the accounts above it ask for.

An account's own rule is known at each of its entries. The rules of the accounts above it are in other journals, which
have no common order with its own but time, and clocks differ, or were set back. So only what no order of the entries
allows is a fault: a change that meets none of the rules which an account above can have had at its moment.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Connection, select

from service.ledger.accounts import account_rows
from service.ledger.accounts.approvers import ANYBODY, Approvers
from service.ledger.journal.account_state import AccountState, HeldRelease, ProposedChange
from service.ledger.journal.chains import UNREADABLE, BrokenChain, all_chained
from service.ledger.journal.entries import AccountOpened, Approved, ApproversChanged, Decided, ParsedEntry, read_text
from service.ledger.journal.journal import BEFORE_FIRST, Actor, Head
from service.ledger.journal.ordered_rows import BadRow
from service.ledger.storage import clock
from service.ledger.storage.tables import OF_CHANGES, Entry
from service.ledger.storage.transaction import secret_of

_TOLERANCE = timedelta(seconds=60)
"""The difference between clocks."""
TOO_FEW = "fewer persons approved than the account asks for"
UNAPPROVED = "the account asks for approvals, and this has none"
UNKNOWN = "the approvals that an account above it asks for are unknown: that account is not as the service wrote it"
_RULES = AccountOpened | ApproversChanged
_KINDS = (AccountOpened.KIND, ApproversChanged.KIND)
UNMET = "fewer persons approved the change than an account above it asks for"


class StatedRule(NamedTuple):
    """The approvers that an account had from a moment on; None: it stated none."""

    at: str
    approvers: Approvers | None


class Decision(NamedTuple):
    """A change of an account for which the accounts above it ask for approvals too.

    Attributes:
        seq: the number of its entry.
        at: its moment.
        approved: the principals that approved it; none if one steward made it.
    """

    seq: int
    at: str
    approved: frozenset[str]


class Before(NamedTuple):
    """The state of an account before an entry that may need approvals.

    Attributes:
        rule: its approvers; None: it stated none.
        takes: whether the entry is a change that takes approvals.
        proposed: the change that waited.
        held: the release that the entry is about, if it was held.
        approved: those that had approved this release.
    """

    rule: Approvers | None
    takes: bool
    proposed: ProposedChange | None
    held: HeldRelease | None
    approved: tuple[Actor, ...]

    @classmethod
    def of(cls, chain: AccountState, entry: ParsedEntry) -> "Before":
        """Return the state of an account before its next entry."""
        held, content = chain.held.get(entry.release or ""), entry.content
        takes = isinstance(content, Decided) and content.takes_approval(chain)
        return cls(chain.approvers, takes, chain.proposed, held, () if held is None else held.approved)


class ApprovalCheck:
    """The check of one account's entries by its own rule.

    Attributes:
        rules: those that the account had, in their order.
        decisions: its changes that the rules of accounts above it concern.
    """

    def __init__(self, chain: AccountState) -> None:
        self._chain = chain
        self.rules: list[StatedRule] = []
        self.decisions: list[Decision] = []

    def take(self, entry: ParsedEntry, before: Before) -> None:
        """Check the last entry that the account's chain has followed.

        Raises:
            BrokenChain: fewer persons approved it than the account asked for.
        """
        content = entry.content
        if isinstance(content, AccountOpened | ApproversChanged):
            self.rules.append(StatedRule(entry.time, content.approvers))
        if isinstance(content, Decided):
            self._take_change(entry, content, before)
        elif isinstance(content, Approved) and before.held is not None and content.to != "proposed":
            held = before.held
            named = self._chain.approval_above is not None if held.asking is None else self._chain.name in held.asking
            if named:
                _require(before.rule, _others((*before.approved, entry.by), held.by))

    def _take_change(self, entry: ParsedEntry, content: Decided, before: Before) -> None:
        approved = frozenset[str]()
        if content.proposal is not None and before.proposed is not None:
            approved = _others((*before.proposed.approved, entry.by), before.proposed.by)
            if self._chain.approval_above is not None:
                _require(before.rule, approved)
        elif before.takes and before.rule is not None:
            raise BrokenChain(UNAPPROVED)
        if before.takes:
            self.decisions.append(Decision(entry.seq, entry.time, approved))


def _others(approved: Sequence[Actor], proposer: Actor) -> frozenset[str]:
    return frozenset(actor.name for actor in approved) - {proposer.name}


def _require(rule: Approvers | None, approved: Collection[str]) -> None:
    if (rule or ANYBODY).missing(approved):
        raise BrokenChain(TOO_FEW)


def check_approvals(connection: Connection, parent: str | None, own: ApprovalCheck, *, one_of_all: bool) -> None:
    """Require that the changes of an account met the rules of the accounts above it.

    Args:
        parent: the account that it is under.
        own: the check of all its entries.
        one_of_all: every account of the ledger is verified in this transaction, so that the texts of those above need
            not be followed here as well.

    Raises:
        BadRow: a change met none of the rules that an account above can have had, or these are unknown.
    """
    if not own.decisions:
        return
    seen = set[str]()
    while parent is not None and parent not in seen:  # an attacker may have made a cycle
        seen.add(parent)
        try:
            stated = [read_text(one) for one in _texts(connection, parent, followed=not one_of_all)]
        except UNREADABLE:
            raise BadRow(own.decisions[0].seq, UNKNOWN) from None
        rules = [StatedRule(one.time, one.content.approvers) for one in stated if isinstance(one.content, _RULES)]
        for decision in own.decisions:
            if not _is_met(rules, decision):
                raise BadRow(decision.seq, UNMET)
        opening = stated[0].content
        parent = opening.parent if isinstance(opening, AccountOpened) else None


def _texts(connection: Connection, name: str, *, followed: bool) -> list[str]:
    """Return the texts of an account's entries that state its rules, the first of which opened it.

    Args:
        followed: whether the texts are those that lead to the head of its sealed row.

    Raises:
        BrokenChain: the account or its first entry is missing, or the service did not write the row.
        Altered: the texts do not lead to the head.
    """
    account = account_rows.read_row(connection, name)
    if account is None:
        raise BrokenChain(UNKNOWN)
    if followed:
        if not account_rows.is_sealed(secret_of(connection), account._mapping):
            raise BrokenChain(UNKNOWN)
        head = Head(account.head_seq, account.head_hash)
        return [one.body for one in all_chained(connection, account.id, BEFORE_FIRST, head, _KINDS, None)]
    query = select(Entry.body).where(Entry.account_id == account.id).order_by(Entry.seq)
    first = connection.execute(query.where(Entry.seq == 1)).scalar()
    if first is None:
        raise BrokenChain(UNKNOWN)
    return [first, *connection.execute(query.where(OF_CHANGES, Entry.kind == ApproversChanged.KIND)).scalars()]


def _is_met(rules: Sequence[StatedRule], decision: Decision) -> bool:
    """Return whether a change met one of the rules that an account can have had when it was made."""
    return any(rule is None or not rule.missing(decision.approved) for rule in _possible(rules, decision.at))


def _possible(rules: Sequence[StatedRule], at: str) -> Iterator[Approvers | None]:
    """Yield the rules that an account can have had at a moment: those that began before it, and did not end before."""
    until = ""
    for number, (began, rule) in enumerate(rules):
        since = min(later.at for later in rules[number:])  # time may have been set back after an entry
        ended = rules[number + 1].at if number + 1 < len(rules) else None
        until = max(until, began, ended or "")
        begins, ends = clock.later(since, -_TOLERANCE), clock.later(until, _TOLERANCE)
        if begins <= at and (ended is None or at <= ends):
            yield rule


class ApprovalAudit:
    """The check of an export, whose accounts come one by one."""

    def __init__(self) -> None:
        self._rules: dict[str, list[StatedRule]] = {}
        self._decisions: dict[str, list[Decision]] = {}
        self._parents: dict[str, str | None] = {}

    def end(self, chain: AccountState, own: ApprovalCheck) -> None:
        """Add an account after its last entry, with the check of all its entries."""
        self._rules[chain.name], self._decisions[chain.name] = own.rules, own.decisions
        self._parents[chain.name] = chain.parent

    def unmet(self) -> Iterator[str]:
        """Yield the accounts with a change that met none of the rules of an account above; all must have been added."""
        for name, decisions in self._decisions.items():
            above = self._above(name) if decisions else ()
            if not all(_is_met(self._rules[one], decision) for one in above for decision in decisions):
                yield name

    def _above(self, name: str) -> Iterator[str]:
        seen, parent = {name}, self._parents[name]
        while parent is not None and parent not in seen:
            yield parent
            seen.add(parent)
            parent = self._parents.get(parent)
