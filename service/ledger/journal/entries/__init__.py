"""The kinds of journal entries: one file for each kind or group of similar kinds, by the contract in ``base.py``."""

import json
from collections.abc import Mapping
from typing import Any

from service.ledger.journal.chains import UNREADABLE, BrokenChain
from service.ledger.journal.entries.account_changed import (
    AccountClosure,
    AccountReopened,
    ApproversChanged,
    BudgetChanged,
    ChangeApproved,
    ChangeProposed,
    ChangeRejected,
    Decided,
    MetadataChanged,
)
from service.ledger.journal.entries.account_opened import AccountOpened
from service.ledger.journal.entries.allotted import Allotted
from service.ledger.journal.entries.base import (
    WRONG,
    ChangeOfAccount,
    Content,
    EntryMembers,
    EntryView,
    Filing,
    OfAccount,
    ParsedEntry,
    Rows,
    read_members,
)
from service.ledger.journal.entries.caps_changed import CapsChanged, ChangedCap
from service.ledger.journal.entries.described import Described
from service.ledger.journal.entries.drawn import Drawn
from service.ledger.journal.entries.refused import Refused
from service.ledger.journal.entries.registration import Committed, Origin, OwnMembers, Proposed, Registration, Reserved
from service.ledger.journal.entries.repriced import PriceChanged
from service.ledger.journal.entries.settlement import Approved, Expired, HoldCommitted, Settlement, Voided
from service.ledger.journal.journal import Kind


def _concrete(*contents: type[Content]) -> tuple[type[Content], ...]:
    """Return the classes, checked to implement every method: mypy takes no abstract class as an argument."""
    return contents


KINDS: Mapping[Kind, tuple[type[Content], ...]] = {
    "account_opened": _concrete(AccountOpened),
    "budget_changed": _concrete(BudgetChanged),
    "account_closed": _concrete(AccountClosure),
    "account_reopened": _concrete(AccountReopened),
    "change_proposed": _concrete(ChangeProposed),
    "metadata_changed": _concrete(MetadataChanged),
    "described": _concrete(Described),
    "proposed": _concrete(Proposed),
    "approved": _concrete(Approved),
    "reserved": _concrete(Reserved),
    "committed": _concrete(Committed, HoldCommitted),
    "voided": _concrete(Voided),
    "expired": _concrete(Expired),
    "drawn": _concrete(Drawn),
    "repriced": _concrete(PriceChanged),
    "refused": _concrete(Refused),
    "caps_changed": _concrete(CapsChanged),
    "change_rejected": _concrete(ChangeRejected),
    "allotted": _concrete(Allotted),
    "change_approved": _concrete(ChangeApproved),
    "approvers_changed": _concrete(ApproversChanged),
}
"""All kinds, each with the class of its content, or several that are told apart by their fields."""

_BY_NAME: Mapping[str, tuple[type[Content], ...]] = dict(KINDS.items())


def read(members: Mapping[str, Any]) -> ParsedEntry:
    """Read an entry.

    Raises:
        BrokenChain: it is of no known kind, or its content is not of its kind.
    """
    around = read_members(members)
    return around.with_content(_read_content(around.kind, members.get("content")))


def _read_content(kind: str, content: Any) -> Content:
    options = _BY_NAME.get(kind)
    if options is None:
        raise BrokenChain("the entry is of no known kind")
    try:
        found = next((option for option in options if option.FORMS.keys() & content.keys()), options[-1])
        return found.read(content)
    except UNREADABLE:
        raise BrokenChain(WRONG) from None


def read_text(body: str) -> ParsedEntry:
    """Read an entry whose text is known to be unchanged.

    Raises:
        BrokenChain: as ``read``.
    """
    return read(json.loads(body))


def show(members: Mapping[str, Any]) -> EntryView:
    """Return the journal page's view of an entry; an empty one for an invalid entry, which verification reports."""
    try:
        return read(members).content.view()
    except BrokenChain:
        return EntryView()


__all__ = [
    "KINDS",
    "WRONG",
    "AccountClosure",
    "AccountOpened",
    "AccountReopened",
    "Allotted",
    "Approved",
    "ApproversChanged",
    "BudgetChanged",
    "CapsChanged",
    "ChangeApproved",
    "ChangeOfAccount",
    "ChangeProposed",
    "ChangeRejected",
    "ChangedCap",
    "Committed",
    "Content",
    "Decided",
    "Described",
    "Drawn",
    "EntryMembers",
    "EntryView",
    "Expired",
    "Filing",
    "HoldCommitted",
    "MetadataChanged",
    "OfAccount",
    "Origin",
    "OwnMembers",
    "ParsedEntry",
    "PriceChanged",
    "Proposed",
    "Refused",
    "Registration",
    "Reserved",
    "Rows",
    "Settlement",
    "Voided",
    "read",
    "read_members",
    "read_text",
    "show",
]
