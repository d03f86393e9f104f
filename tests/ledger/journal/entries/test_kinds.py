"""Every kind of journal entry, by the contract."""

from typing import Any, get_args

import pytest

from service.ledger.journal import entries
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import (
    KINDS,
    AccountClosure,
    AccountOpened,
    AccountReopened,
    Approved,
    BudgetChanged,
    ChangeProposed,
    Committed,
    Content,
    Described,
    Drawn,
    Expired,
    HoldCommitted,
    MetadataChanged,
    PriceChanged,
    Proposed,
    Refused,
    Reserved,
    Voided,
)
from service.ledger.journal.journal import Kind
from tests.ledger.journal.entries.contract import EntryContract, content_in, recorded


class TestAccountOpened(EntryContract):
    kind = AccountOpened
    optional = frozenset({"parent", "approval_above"})  # the first version had neither


class TestBudgetChanged(EntryContract):
    kind = BudgetChanged
    optional = frozenset({"proposal"})


class TestAccountClosure(EntryContract):
    kind = AccountClosure


class TestAccountReopened(EntryContract):
    kind = AccountReopened
    optional = unrecorded = frozenset({"proposal"})


class TestChangeProposed(EntryContract):
    kind = ChangeProposed
    unrecorded = frozenset({"state"})


class TestMetadataChanged(EntryContract):
    kind = MetadataChanged


class TestDescribed(EntryContract):
    kind = Described


class TestCommitted(EntryContract):
    kind = Committed
    optional = frozenset({"origin"})


class TestReserved(EntryContract):
    kind = Reserved
    optional = frozenset({"origin"})


class TestProposed(EntryContract):
    kind = Proposed
    optional = frozenset({"origin"})


class TestApproved(EntryContract):
    kind = Approved


class TestHoldCommitted(EntryContract):
    kind = HoldCommitted


class TestVoided(EntryContract):
    kind = Voided


class TestExpired(EntryContract):
    kind = Expired


class TestDrawn(EntryContract):
    kind = Drawn
    optional = frozenset({"groups", "layout_hash", "level"})


class TestPriceChanged(EntryContract):
    kind = PriceChanged


class TestRefused(EntryContract):
    kind = Refused


def test_the_registry_has_every_kind() -> None:
    assert list(KINDS) == list(get_args(Kind))
    assert all(kind == content.KIND for kind, contents in KINDS.items() for content in contents)


def test_every_kind_is_held_to_the_contract() -> None:
    held = {contract.kind for contract in EntryContract.__subclasses__()}
    assert held == {content for contents in KINDS.values() for content in contents}


def test_a_kind_that_is_unknown_is_refused() -> None:
    with pytest.raises(BrokenChain, match="of no known kind"):
        entries.read(_entry(kind="unheard_of"))


@pytest.mark.parametrize(
    "change",
    [
        {"seq": "1"},
        {"seq": True},
        {"account": None},
        {"time": 1},
        {"actor": 7},
        {"release": 7},
        {"key": None},
        {"x": 1},
    ],
)
def test_what_every_entry_says_is_read_strictly(change: dict[str, Any]) -> None:
    assert entries.read(_entry()).content == AccountClosure()
    with pytest.raises(BrokenChain, match=entries.WRONG):
        entries.read(_entry() | change)


@pytest.mark.parametrize("name", ["account", "actor", "content", "kind", "release", "seq", "time"])
def test_what_every_entry_says_is_not_left_out(name: str) -> None:
    with pytest.raises(BrokenChain):
        entries.read({other: value for other, value in _entry().items() if other != name})


@pytest.mark.parametrize(
    "change", [{}, {"state": "closed"}, {"state": "open", "budget": {"definition": "zcdp", "rho": "1"}}]
)
def test_a_proposal_is_of_one_change(change: dict[str, Any]) -> None:
    with pytest.raises(BrokenChain, match=entries.WRONG):
        entries.read(_entry(kind="change_proposed", content=change))


def test_a_reopening_is_proposed_as_its_state() -> None:
    assert AccountReopened().proposed().content().text == '{"state":"open"}'
    assert AccountReopened(proposal=7).content().text == '{"proposal":7}'


@pytest.mark.parametrize("name", ["groups", "layout_hash", "level"])
def test_half_a_tabulation_is_refused(name: str) -> None:
    body = next(body for body, stated in recorded(Drawn) if name in content_in(body))
    content = {other: value for other, value in content_in(body).items() if other != name}
    with pytest.raises(BrokenChain, match=entries.WRONG):
        entries.read(_entry(kind="drawn", content=content, release="r"))


def _entry(**change: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "account": "a",
        "actor": "ann",
        "content": {},
        "kind": "account_closed",
        "release": None,
        "seq": 2,
        "time": "",
    }
    return said | change


def test_the_page_shows_nothing_of_what_is_no_entry() -> None:
    assert entries.show({"kind": "refused"}) == entries.EntryView()


def test_a_kind_that_forgets_an_answer_is_none() -> None:
    answers = Content.__abstractmethods__
    assert answers == {"needs_steward", "next_state", "replay", "rows", "shown"}
