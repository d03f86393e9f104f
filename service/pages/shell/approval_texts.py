"""Approvals in words, and why a reader of a page cannot give one; the module has no side effects."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import InvalidInput
from service.pages.shell.typed_lists import names_of

_STUCK = (
    " That is more than those listed can give, as nobody approves a proposal of their own. Withdraw or reject it for"
    " another person to propose it, or have another steward state further approvers, which those listed approve."
)


def obstacle_text(waits: Mapping[str, Any], principal: str) -> str | None:
    """Return in words why a principal cannot approve what waits; None if it can.

    Args:
        waits: a proposed release or change, as ``/v1`` shows it with obstacles.
    """
    obstacle: Any = waits.get("obstacle")
    approval: Any = waits.get("approval")
    if obstacle is None:
        return None
    match obstacle["type"]:
        case "own_proposal" | "approved" | "not_asked" if approval is not None and _is_stuck(approval):
            by_you = "You proposed it: too" if obstacle["type"] == "own_proposal" else "Too"
            return f"{by_you} few of those who are asked can approve it."
        case "own_proposal":
            return f"You proposed it: {'others' if approval else 'another person'} must approve it."
        case "approved":
            return "You have approved it; others must approve it too."
        case "not_asked":
            return "Others must approve it."
        case "role" if approval is None or approval["may_approve"] is None:
            return "It waits for the approval of a steward or an approver."
        case "role" if principal not in approval["may_approve"]:
            return "Others must approve it."
        case "role":
            return (
                "You are among those who are asked, but your key does not approve."
                " Ask the operator of the service for a key with the role approver."
            )
    return f"You cannot approve it with this key. It takes {obstacle['detail'].removeprefix('expected ')}"


def is_asked(waits: Mapping[str, Any], principal: str) -> bool:
    """Return whether a principal can approve what waits, or is named as one who should, whatever its key."""
    obstacle: Any = waits["obstacle"]
    if obstacle is None:
        return True
    named: Any = (waits.get("approval") or {}).get("may_approve") or ()
    return principal in named and obstacle["type"] in ("role", "reach", "known_key")


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
    return (
        done + ("; ".join(waits) + "." if waits else "The approval of one more person completes it.") + _lack(approval)
    )


def _is_stuck(approval: Mapping[str, Any], unable: Sequence[str] = ()) -> bool:
    """Return whether a list asks for more approvals than those on it can still give.

    Args:
        unable: those who have no key to approve with.
    """
    may = approval["may_approve"]
    if may is None:
        return False
    return any(
        one["of"] and one["missing"] > len((set(may) - set(unable)) & set(one["of"])) for one in approval["asked"]
    )


def _lack(approval: Mapping[str, Any]) -> str:
    """Return in words why those who are asked cannot approve it, as far as they cannot; empty: all can."""
    if _is_stuck(approval):
        return _STUCK
    unable = approval.get("unable")
    if not unable:
        return ""
    lack = f" {_listed(unable, 'and')} {'has' if len(unable) == 1 else 'have'} no key that can approve."
    if _is_stuck(approval, unable):
        lack += " Until the operator of the service makes one, it cannot be approved."
    return lack


def _listed(names: Sequence[str], word: str) -> str:
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def approvers_of(at_least: str, names: str, pointer: str) -> dict[str, Any]:
    """Return the member ``approvers`` of typed texts; empty if both are blank.

    Raises:
        InvalidInput: the number of persons is none.
    """
    stated = names_of(names)
    if not at_least and not stated:
        return {}
    number = at_least or "1"
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise InvalidInput.at(pointer, "expected a whole number of persons, such as 2")
    return {"approvers": {"at_least": int(number)} | ({"of": stated} if stated else {})}
