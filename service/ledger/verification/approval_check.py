"""The check that changes of an account met the rules of the accounts above it, which are in other journals.

Journals of different accounts have no common order but time, and clocks differ, or were set back. So only what no order
of their entries allows is a fault: a change that meets none of the rules which an account above can have had at its
moment.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from sqlalchemy import Connection, select

from service.ledger.accounts.approvers import Approvers
from service.ledger.journal.account_state import AccountState, Decision, StatedRule
from service.ledger.journal.entries import AccountOpened, ApproversChanged, read_text
from service.ledger.journal.ordered_rows import BadRow
from service.ledger.storage import clock
from service.ledger.storage.tables import OF_CHANGES, Account, Entry

_TOLERANCE = timedelta(seconds=60)
"""The difference between clocks."""
UNMET = "fewer persons approved the change than an account above it asks for"


def check_approvals(connection: Connection, chain: AccountState) -> None:
    """Require that the changes of an account met the rules of the accounts above it.

    Args:
        chain: of the account, after its last entry.

    Raises:
        BadRow: one met none of the rules that an account above can have had.
    """
    if not chain.decisions:
        return
    for rules in _rules_above(connection, chain.parent):
        for decision in chain.decisions:
            if not _is_met(rules, decision):
                raise BadRow(decision.seq, UNMET)


def _rules_above(connection: Connection, parent: str | None) -> Iterator[list[StatedRule]]:
    """Yield the rules that each account above had, as its journal states them."""
    seen = set[str]()
    while parent is not None and parent not in seen:  # an attacker may have made a cycle
        seen.add(parent)
        account = connection.execute(select(Account.id).where(Account.name == parent)).scalar_one()
        query = select(Entry.body).where(Entry.account_id == account).order_by(Entry.seq)
        first = connection.execute(query.where(Entry.seq == 1)).scalar_one()
        later = connection.execute(query.where(OF_CHANGES, Entry.kind == ApproversChanged.KIND)).scalars()
        entries = [read_text(body) for body in (first, *later)]
        stated = ((one.time, one.content) for one in entries)
        yield [
            StatedRule(at, content.approvers)
            for at, content in stated
            if isinstance(content, AccountOpened | ApproversChanged)
        ]
        opening = entries[0].content
        parent = opening.parent if isinstance(opening, AccountOpened) else None


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

    def end(self, chain: AccountState) -> None:
        """Add an account after its last entry."""
        self._rules[chain.name], self._decisions[chain.name] = chain.rules, chain.decisions
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
