"""Approvals in words, and whom a page shows a button to approve; the module has no side effects."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import InvalidInput


def may_approve(approval: Mapping[str, Any] | None, principal: str, proposer: str) -> bool:
    """Return whether a principal with the role for it may approve a proposal.

    Args:
        approval: as ``/v1`` states it; None: no account states approvers, so any other person may.
    """
    if principal == proposer:
        return False
    if approval is None:
        return True
    if approval["may_approve"] is None:
        return principal not in approval["approved_by"]
    return principal in approval["may_approve"]


def rule_text(approvers: Mapping[str, Any] | None) -> str:
    """Return in words who must approve, as an account states it."""
    if approvers is None:
        return "another person"
    number, names = approvers["at_least"], approvers.get("of")
    if names is None:
        return "another person" if number == 1 else f"{number} other persons"
    if number == len(names):
        return _listed(names, "and")
    return f"{'one' if number == 1 else number} of {_listed(names, 'and')}"


def standing_text(approval: Mapping[str, Any]) -> str:
    """Return in words who has approved a proposal, and whose approval it still waits for."""
    approved, may = approval["approved_by"], approval["may_approve"]
    waits = []
    for one in approval["asked"]:
        if one["missing"]:
            number = f"{one['missing']} {'more ' if approved else ''}approval{'' if one['missing'] == 1 else 's'}"
            left = [name for name in one["of"] or () if (name not in approved if may is None else name in may)]
            by = f", by {_listed(left, 'or')}" if left else ""
            waits.append(f"{one['account']} asks for {number}{by}")
    done = f"Approved by {', '.join(approved)}. " if approved else ""
    return done + ("; ".join(waits) + "." if waits else "The approval of one more person completes it.")


def _listed(names: Sequence[str], word: str) -> str:
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def approvers_of(at_least: str, names: str, pointer: str) -> dict[str, Any]:
    """Return the member ``approvers`` of typed texts, a name on each line; empty if both are blank.

    Raises:
        InvalidInput: the number of persons is none.
    """
    stated = [line.strip() for line in names.splitlines() if line.strip()]
    if not at_least and not stated:
        return {}
    number = at_least or "1"
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise InvalidInput.at(pointer, "expected a whole number of persons, such as 2")
    return {"approvers": {"at_least": int(number)} | ({"of": stated} if stated else {})}
