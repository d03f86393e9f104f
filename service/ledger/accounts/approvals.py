"""The approvals that a release or a change of an account has, and those that it still waits for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sqlalchemy import Connection

from service.ledger.accounts import lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.approvers import ANYBODY, Approvers
from service.ledger.journal.journal import Actor


class AskedRule(NamedTuple):
    """The present rule of an account that asks for an approval; ``account`` is its name."""

    account: str
    approvers: Approvers
    is_stated: bool


ObjectionKind = Literal["role", "reach", "own_proposal", "not_asked", "known_key", "approved"]


class Objection(NamedTuple):
    """The reason why a principal's approval would not count, as a kind and in words.

    ``role`` and ``reach`` are of its key; ``known_key``: others, who do not count, could have used that.
    """

    kind: ObjectionKind
    reason: str


@dataclass(frozen=True, slots=True)
class Approval:
    """The standing of the approval of a proposal, by the present rules of the accounts that ask for it.

    Attributes:
        proposer: the actor that proposed it.
        given: those that approved it, in the order in which they did.
        rules: of the accounts that ask; each must be met.
        reach: the names of the accounts that the key of each approval must reach.
    """

    proposer: Actor
    given: tuple[Actor, ...]
    rules: tuple[AskedRule, ...]
    reach: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return the principals that approved it, each once."""
        return list(dict.fromkeys(actor.name for actor in self.given))

    def missing(self, rule: AskedRule) -> int:
        """Return how many further persons a rule asks for."""
        return rule.approvers.missing(self.names)

    def is_met_with(self, principal: str) -> bool:
        """Return whether all rules are met once a principal has approved too."""
        return not any(rule.approvers.missing([*self.names, principal]) for rule in self.rules)

    @property
    def _open(self) -> list[AskedRule]:
        """Return the rules that are not met; all of them where all are, after one was changed."""
        return [rule for rule in self.rules if self.missing(rule)] or list(self.rules)

    @property
    def may_approve(self) -> list[str] | None:
        """Return the principals whose approval would count now; None: those of any steward or approver.

        The proposer is not among them, nor one that has approved already, unless all rules are met since one was
        changed: then any approval that counts is the last one.
        """
        if any(rule.approvers.of is None for rule in self._open):
            return None
        waits = any(map(self.missing, self.rules))
        without = {self.proposer.name, *(self.names if waits else ())}
        return sorted({name for rule in self._open for name in rule.approvers.of or ()} - without)

    def has_no_need_of(self, principal: str) -> bool:
        """Return whether a principal has approved already and others must still do so."""
        return principal in self.names and any(map(self.missing, self.rules))

    def objection_to(self, principal: str, what: str) -> Objection | None:
        """Return why a principal is none of those whose approval counts; None if it is one of them.

        Args:
            what: the proposed thing, for the message.
        """
        if principal == self.proposer.name:
            return Objection("own_proposal", f"expected another principal than the one that proposed {what}")
        if any(rule.approvers.admits(principal) for rule in self._open):
            return None
        may = self.may_approve or ()
        asking = ", ".join(rule.account for rule in self._open)
        return Objection(
            "not_asked",
            f"expected one of the principals whose approval of {what} {asking} still asks for:"
            f" {', '.join(may) or 'none of them may approve, as they proposed it'}",
        )


def rules_of(accounts: Iterable[AccountRecord]) -> tuple[AskedRule, ...]:
    """Return the present rules of accounts that ask for approvals; those that never ask have none."""
    return tuple(
        AskedRule(account.name, account.approvers or ANYBODY, account.approvers is not None)
        for account in accounts
        if account.approval_above is not None
    )


def rules_above(connection: Connection, name: str) -> tuple[AskedRule, ...]:
    """Return the rules by which changes of an account are approved: its own, and those of the accounts above it."""
    return rules_of(lines.line_above(connection, name))


def approval_of_change(connection: Connection, account: AccountRecord) -> Approval | None:
    """Return the approval of the change of an account that waits; None if none waits."""
    if account.proposed is None:
        return None
    waits = account.proposed
    reach = () if account.funding is None or account.parent is None else (account.parent,)
    return Approval(waits.by, waits.approved, rules_above(connection, account.name), reach)


def asking(line: Sequence[AccountRecord], names: Sequence[str] | None) -> tuple[AskedRule, ...]:
    """Return the rules by which a release is approved.

    Args:
        line: the accounts that it is charged to, root first.
        names: those whose approval its proposal asks for; None: an older version proposed it, which stated none, and
            all accounts ask that require approvals.
    """
    return rules_of(account for account in line if names is None or account.name in names)
