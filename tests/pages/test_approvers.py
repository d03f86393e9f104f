"""Approvers on the pages: stated in forms, shown in words, and no button for those who may not approve."""

from typing import Any

import pytest

from tests.api.calls import Client, json_of, open_account, operators_key, pure, release
from tests.pages.visits import hidden, sign_in, submit

_TWO = {"at_least": 2, "of": ["bob", "carol", "first-steward"]}
_OPEN = {"name": "strict", "unit": "person", "neighbouring": "add_remove", "definition": "zcdp", "cap": "1"}
_PAGE = "/accounts/strict"


@pytest.fixture
def strict(api: Client) -> Client:
    """An account of which two of three must approve every release."""
    open_account(api, "strict", approval_above="0", approvers=_TWO)
    return api


def _as(api: Client, visitor: Client, name: str) -> Client:
    sign_in(visitor, operators_key(api, "approver", name)["Authorization"].removeprefix("Bearer "))
    return visitor


def _button(shown: str, action: str) -> bool:
    return f'action="{action}"' in shown


def test_an_account_is_opened_with_approvers(api: Client, steward: Client) -> None:
    fields = _OPEN | {"approval_above": "0.1", "at_least": "2", "approver_names": "dan\r\n bob \r\n\r\ncarol"}
    answer = submit(steward, "/new-account", "/new-account", **fields)
    assert answer.headers["Location"] == f"{_PAGE}?done=opened"
    assert json_of(api.get(f"/v1{_PAGE}"))["approvers"] == {"at_least": 2, "of": ["bob", "carol", "dan"]}
    shown = steward.get(_PAGE).text
    assert "by 2 of bob, carol and dan, of a release above 0.1" in shown
    assert "A greater budget waits for the approval of 2 of bob, carol and dan." in shown


def test_an_account_is_opened_without_approvers(api: Client, steward: Client) -> None:
    submit(steward, "/new-account", "/new-account", **_OPEN, approval_above="0.1")
    assert "approvers" not in json_of(api.get(f"/v1{_PAGE}"))
    assert "by another person, of a release above 0.1" in steward.get(_PAGE).text


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"at_least": "two"}, "at_least"),
        ({"at_least": "-1"}, "at_least"),
        ({"at_least": "11"}, "at_least"),
        ({"at_least": "2", "approver_names": "bob"}, "at_least"),
        ({"approver_names": "bob\nbob"}, "approver_names"),
        ({"approver_names": "x" * 201}, "approver_names"),
        ({"at_least": "1", "approval_above": ""}, "approval_above"),
    ],
)
def test_wrong_approvers_are_shown_at_their_field(
    api: Client, steward: Client, fields: dict[str, str], fault: str
) -> None:
    refused = submit(steward, "/new-account", "/new-account", **_OPEN | {"approval_above": "1"} | fields)
    assert refused.status_code == 422
    assert f'id="{fault}-fault"' in refused.text
    assert api.get(f"/v1{_PAGE}").status_code == 404
    if fault != "approval_above":
        open_account(api, "strict", approval_above="1")
        refused = submit(steward, _PAGE, f"{_PAGE}/approvers", **{"at_least": "1"} | fields)
        assert refused.status_code == 422
        assert f'id="{fault}-fault"' in refused.text
        assert "approvers" not in json_of(api.get(f"/v1{_PAGE}"))


def test_a_release_is_approved_by_those_who_may(strict: Client, steward: Client) -> None:
    of = release(strict, pure("0.2"), "strict", name="large")
    page = f"{_PAGE}/releases/{of['id']}"
    shown = steward.get(page).text
    assert "strict asks for 2 approvals, by bob or carol." in shown
    assert "You proposed it: others must approve it." in shown
    eve = _as(strict, steward, "eve")
    assert not any(_button(eve.get(one).text, f"{page}/approve") for one in (page, _PAGE))
    assert "Others must approve it." in eve.get(page).text
    assert "Waiting for you" not in eve.get("/").text
    assert _button(eve.get(page).text, f"{page}/void")
    bob = _as(strict, steward, "bob")
    assert "Waiting for you" in bob.get("/").text
    assert _button(bob.get(_PAGE).text, f"{page}/approve")
    done = submit(bob, page, f"{page}/approve", approval_reason="fine")
    assert done.headers["Location"] == f"{page}?done=approved"
    shown = bob.get(done.headers["Location"]).text
    assert "Your approval is an entry of the journal. The release still waits for other persons." in shown
    assert "You have approved it; others must approve it too." in shown
    assert ">approved</a>, and waits for others" in shown
    assert "Approved by bob. strict asks for 1 more approval, by carol." in shown
    assert not _button(shown, f"{page}/approve")
    assert "Waiting for you" not in bob.get("/").text
    carol = _as(strict, steward, "carol")
    done = submit(carol, page, f"{page}/approve")
    shown = carol.get(done.headers["Location"]).text
    assert "The release was approved." in shown
    assert "asks for" not in shown


def test_a_change_is_approved_by_those_who_may(strict: Client, steward: Client) -> None:
    answer = submit(steward, _PAGE, f"{_PAGE}/budget", cap="2", declared="")
    shown = steward.get(answer.headers["Location"]).text
    assert "The change waits for other persons." in shown
    assert "strict asks for 2 approvals, by bob or carol." in shown
    eve = _as(strict, steward, "eve").get(_PAGE).text
    assert not _button(eve, f"{_PAGE}/budget")
    assert _button(eve, f"{_PAGE}/reject")
    assert "Waiting for you" not in steward.get("/").text
    bob = _as(strict, steward, "bob")
    assert "a greater budget" in bob.get("/").text
    done = submit(bob, _PAGE, f"{_PAGE}/budget", cap="2", declared="")
    shown = bob.get(done.headers["Location"]).text
    assert "Your approval is an entry of the journal. The change still waits for other persons." in shown
    assert not _button(shown, f"{_PAGE}/budget")
    assert "Approved by bob." in shown
    submit(_as(strict, steward, "carol"), _PAGE, f"{_PAGE}/budget", cap="2", declared="")
    assert json_of(strict.get(f"/v1{_PAGE}"))["budget"]["rho"] == "2"


def test_other_approvers_are_proposed_and_approved(strict: Client, steward: Client) -> None:
    shown = steward.get(_PAGE).text
    assert 'name="at_least" type="text" value="2"' in shown
    assert "bob\ncarol\nfirst-steward</textarea>" in shown
    fields: dict[str, Any] = {"at_least": "1", "approver_names": "", "reason": "a smaller board"}
    assert submit(steward, _PAGE, f"{_PAGE}/approvers", **fields).headers["Location"] == f"{_PAGE}?done=proposed"
    assert "first-steward proposed other approvers, another person" in steward.get(_PAGE).text
    bob = _as(strict, steward, "bob")
    assert "other approvers, which first-steward proposed" in bob.get("/").text
    seq = hidden(bob.get(_PAGE).text, "seq")
    late = submit(bob, _PAGE, f"{_PAGE}/approvers/approve", seq="1")
    assert late.headers["Location"] == _PAGE
    assert submit(bob, _PAGE, f"{_PAGE}/approvers/approve", seq=seq).status_code == 303
    assert submit(_as(strict, steward, "carol"), _PAGE, f"{_PAGE}/approvers/approve", seq=seq).status_code == 303
    assert json_of(strict.get(f"/v1{_PAGE}"))["approvers"] == {"at_least": 1}


def test_an_account_without_a_threshold_has_no_form_for_approvers(steward: Client) -> None:
    assert not _button(steward.get("/accounts/empty").text, "/accounts/empty/approvers")
