"""Every kind of journal entry: its content is canonical, read back strictly, and filed in its place."""

import json
from typing import Any, get_args

import pytest

from service.ledger.journal import entries
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import (
    KINDS,
    WRONG,
    AccountClosure,
    AccountOpened,
    AccountReopened,
    Approved,
    ApproversChanged,
    BudgetChanged,
    CapsChanged,
    ChangeApproved,
    ChangeProposed,
    ChangeRejected,
    Committed,
    Content,
    Drawn,
    MetadataChanged,
    PriceChanged,
    Proposed,
    Refused,
    Reserved,
)
from service.ledger.journal.journal import Kind
from tests.ledger.journal.entries.recorded import FILING, content_in, recorded

_WRONG: tuple[Any, ...] = (7.5, True, [], {}, -1, "\ud800", {"account": "a"}, [1], "not such a thing")
_OPTIONAL: dict[type[Content], set[str]] = {
    AccountOpened: {"parent", "approval_above", "caps", "approvers"},  # the first version had none of them
    BudgetChanged: {"proposal", "reason"},
    AccountReopened: {"proposal", "reason"},
    ApproversChanged: {"proposal", "reason"},
    ChangeApproved: {"reason"},
    AccountClosure: {"reason"},
    ChangeProposed: {"reason"},
    MetadataChanged: {"reason"},
    CapsChanged: {"proposal", "reason"},
    ChangeRejected: {"reason"},
    Approved: {"reason"},
    Committed: {"origin", "caps"},
    Reserved: {"origin", "caps"},
    Proposed: {"origin", "caps"},
    PriceChanged: {"caps"},
    Refused: {"tag"},
    Drawn: {"groups", "layout_hash", "level"},
}
"""Members that an entry may lack."""


@pytest.fixture(
    params=[content for contents in KINDS.values() for content in contents],
    ids=lambda kind: kind.__name__,
)
def kind(request: pytest.FixtureRequest) -> type[Content]:
    """Every kind of entry."""
    found: type[Content] = request.param
    return found


def test_every_kind_is_recorded(kind: type[Content]) -> None:
    """Earlier versions wrote such entries."""
    assert recorded(kind)


def test_what_was_recorded_is_written_byte_for_byte(kind: type[Content]) -> None:
    """The oracle is the text that an earlier version hashed."""
    for body, stated in recorded(kind):
        written = stated.content.content().text
        assert f'"content":{written},' in body
        assert json.loads(written) == content_in(body)


def test_reading_undoes_writing(kind: type[Content]) -> None:
    for _, stated in recorded(kind):
        assert kind.read(json.loads(stated.content.content().text)) == stated.content


def test_every_member_is_a_field(kind: type[Content]) -> None:
    members = {name for body, _ in recorded(kind) for name in content_in(body)}
    assert members == set(kind.FORMS)


def test_a_member_that_is_missing_is_refused(kind: type[Content]) -> None:
    body, _ = recorded(kind)[0]
    for name in content_in(body).keys() - _OPTIONAL.get(kind, set()):
        _refused_content(body, {other: value for other, value in content_in(body).items() if other != name})


def test_a_member_that_is_unknown_is_refused(kind: type[Content]) -> None:
    body, _ = recorded(kind)[0]
    _refused_content(body, content_in(body) | {"unheard_of": None})


@pytest.mark.parametrize("content", [None, [], "", 1])
def test_a_content_that_is_no_object_is_refused(kind: type[Content], content: object) -> None:
    _refused_content(recorded(kind)[0][0], content)


def test_members_of_another_type_are_refused(kind: type[Content]) -> None:
    for body, _ in recorded(kind)[:3]:
        for name, value in content_in(body).items():
            for other in filter(lambda other: not _may_stand(name, value, other), _WRONG):
                _refused_content(body, content_in(body) | {name: other})


def test_the_rows_of_an_entry_are_of_its_place(kind: type[Content]) -> None:
    """The place that a row repeats is that of its entry."""
    for _, stated in recorded(kind):
        rows = stated.content.rows(FILING)
        for row in (row for added in rows.added.values() for row in added):
            assert (row["account_id"], row["seq"]) == FILING[:2]
        if "state" in rows.changed:
            assert rows.changed["state"] == stated.content.next_state()


def _refused_content(body: str, content: object) -> None:
    with pytest.raises(BrokenChain, match=WRONG):
        entries.read(json.loads(body) | {"content": content})


def _may_stand(name: str, value: object, other: object) -> bool:
    """Tell whether a kind takes another value: any text for text, any object for a plan, which pricing reads."""
    if isinstance(value, str | None) and isinstance(other, str):
        return True
    return (name in ("before", "plan", "metadata") and isinstance(other, dict)) or (name == "tags" and other == [])


def test_the_registry_has_every_kind() -> None:
    assert list(KINDS) == list(get_args(Kind))
    assert all(kind == content.KIND for kind, contents in KINDS.items() for content in contents)


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
    assert answers == {"least_role", "next_state", "replay", "rows", "view"}
