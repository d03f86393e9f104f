"""Approvers on the pages: stated in forms, shown in words, and no button for those who may not approve."""

from typing import Any

import pytest

from tests.api.calls import Client, json_of, make_key, open_account, operators_key, pure, release
from tests.pages.visits import hidden, sign_in, submit

_TWO = {"at_least": 2, "of": ["bob", "carol", "first-steward"]}
_OPEN = {"name": "strict", "unit": "person", "neighbouring": "add_remove", "definition": "zcdp", "cap": "1"}
_PAGE = "/accounts/strict"

_GREATER = {
    "cap": "2",
    "declared": "",
    "greater": "ρ from 1 to 2, 2 times as large",
    "reason": "a new survey",
}


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
    refused = submit(steward, "/new-account", "/new-account", **fields)
    assert refused.status_code == 422
    assert "no key has the name dan; expected a principal that can approve: no key has the name bob" in refused.text
    assert api.get(f"/v1{_PAGE}").status_code == 404
    fields |= {"nevertheless": hidden(refused.text, "nevertheless")}
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
    assert "strict asks for 2 approvals, by bob or carol. bob and carol have no key that can approve." in shown
    assert "Until the operator of the service makes one, it cannot be approved." in shown
    for name in ("bob", "carol"):
        operators_key(strict, "approver", name)
    shown = steward.get(page).text
    assert "strict asks for 2 approvals, by bob or carol." in shown
    assert "no key that can approve" not in shown
    assert "You proposed it: others must approve it." in shown
    eve = _as(strict, steward, "eve")
    assert not any(_button(eve.get(one).text, f"{page}/approve") for one in (page, _PAGE))
    assert "Others must approve it." in eve.get(page).text
    assert "Waiting for you" not in eve.get("/").text
    assert _button(eve.get(page).text, f"{page}/void")
    bob = _as(strict, steward, "bob")
    assert "Waiting for you" in bob.get("/").text
    assert _button(bob.get(_PAGE).text, f"{page}/approve")
    done = submit(bob, page, f"{page}/approve", reason="fine")
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
    dave = _as(strict, steward, "dave")
    late = dave.post(f"{page}/approve", data={"csrf": hidden(dave.get(page).text, "csrf"), "once": "late"})
    assert "Others had approved the release already." in dave.get(late.headers["Location"]).text


def test_a_change_is_approved_by_those_who_may(strict: Client, steward: Client) -> None:
    answer = submit(steward, _PAGE, f"{_PAGE}/budget", **_GREATER)
    shown = steward.get(answer.headers["Location"]).text
    assert "The change waits for other persons." in shown
    assert "strict asks for 2 approvals, by bob or carol." in shown
    eve = _as(strict, steward, "eve").get(_PAGE).text
    assert not _button(eve, f"{_PAGE}/approve")
    assert _button(eve, f"{_PAGE}/reject")
    assert "Waiting for you" not in steward.get("/").text
    bob = _as(strict, steward, "bob")
    assert "strict</a>: the budget from ρ = 1 (" in bob.get("/").text
    proposal = hidden(bob.get(_PAGE).text, "proposal")
    done = submit(bob, _PAGE, f"{_PAGE}/approve", proposal=proposal)
    shown = bob.get(done.headers["Location"]).text
    assert "Your approval is an entry of the journal. The change still waits for other persons." in shown
    assert not _button(shown, f"{_PAGE}/approve")
    assert "Approved by bob." in shown
    carol = _as(strict, steward, "carol")
    sent = {"csrf": hidden(carol.get(_PAGE).text, "csrf"), "proposal": proposal}
    submit(carol, _PAGE, f"{_PAGE}/approve", proposal=proposal)
    assert json_of(strict.get(f"/v1{_PAGE}"))["budget"]["rho"] == "2"
    for once in ("late", "later still"):
        late = carol.post(f"{_PAGE}/approve", data=sent | {"once": once})
        assert "You approved nothing" in carol.get(late.headers["Location"]).text
    assert json_of(strict.get(f"/v1{_PAGE}"))["proposed_change"] is None


def test_a_rejected_change_is_not_proposed_by_a_late_approval(strict: Client, steward: Client) -> None:
    submit(steward, _PAGE, f"{_PAGE}/budget", **_GREATER)
    seq = hidden(steward.get(_PAGE).text, "proposal")
    submit(steward, _PAGE, f"{_PAGE}/reject", proposal=seq, reason="a slip")
    bob = _as(strict, steward, "bob")
    sent = {"csrf": hidden(bob.get(_PAGE).text, "csrf"), "once": "late", "proposal": seq}
    assert bob.post(f"{_PAGE}/approve", data=sent).headers["Location"] == f"{_PAGE}?done=late"
    assert json_of(strict.get(f"/v1{_PAGE}"))["proposed_change"] is None


def test_a_proposal_that_nobody_can_approve_says_so(api: Client, steward: Client) -> None:
    open_account(api, "strict", approval_above="0", approvers={"at_least": 1, "of": ["first-steward"]})
    release(api, pure("0.1"), "strict", name="own")
    page = f"{_PAGE}/releases/{json_of(api.get(f'/v1{_PAGE}/releases'))['items'][0]['id']}"
    shown = steward.get(page).text
    assert "You proposed it: too few of those who are asked can approve it." in shown
    assert "more than those listed can give" in shown
    assert "strict asks for 1 approval. That is" in shown
    bob = _as(api, steward, "bob").get(page).text
    assert "Too few of those who are asked can approve it." in bob


def test_other_approvers_are_proposed_and_approved(strict: Client, steward: Client) -> None:
    shown = steward.get(_PAGE).text
    assert 'name="at_least" type="text" value="2"' in shown
    assert "bob\ncarol\nfirst-steward</textarea>" in shown
    fields: dict[str, Any] = {"at_least": "1", "approver_names": "", "reason": "a smaller board"}
    assert submit(steward, _PAGE, f"{_PAGE}/approvers", **fields).headers["Location"] == f"{_PAGE}?done=proposed"
    assert "first-steward proposed other approvers, another person" in steward.get(_PAGE).text
    bob = _as(strict, steward, "bob")
    assert "other approvers, another person" in bob.get("/").text
    seq = hidden(bob.get(_PAGE).text, "proposal")
    assert submit(bob, _PAGE, f"{_PAGE}/approve", proposal=seq).status_code == 303
    assert submit(_as(strict, steward, "carol"), _PAGE, f"{_PAGE}/approve", proposal=seq).status_code == 303
    assert json_of(strict.get(f"/v1{_PAGE}"))["approvers"] == {"at_least": 1}


def test_an_account_without_a_threshold_has_no_form_for_approvers(steward: Client) -> None:
    assert not _button(steward.get("/accounts/empty").text, "/accounts/empty/approvers")


def test_a_key_that_a_steward_knows_has_no_button_but_a_sentence(strict: Client, steward: Client) -> None:
    """A steward beside the list makes the key of a listed person: its approval would be refused."""
    alice = make_key(strict, "steward", "alice")
    made = json_of(strict.post("/v1/keys", json={"name": "bob", "role": "approver"}, headers=alice), 201)
    assert made["not_approver_of"] == ["strict"]
    of = release(strict, pure("0.2"), "strict", name="large")
    page = f"{_PAGE}/releases/{of['id']}"
    sign_in(steward, made["key"])
    shown = steward.get(page).text
    assert not _button(shown, f"{page}/approve")
    assert not _button(steward.get(_PAGE).text, f"{page}/approve")
    sentence = (
        "You cannot approve it with this key. It takes a key that only the approvers of strict could have used: alice,"
        " who has known this key since it was made or rotated, is not among them. Ask the operator of the service to"
        f" rotate it: python -m service keys rotate {made['id']}"
    )
    assert sentence in shown
    assert sentence in steward.get("/").text


def test_a_pipeline_with_a_listed_name_is_told_what_it_lacks(api: Client, steward: Client) -> None:
    open_account(api, "strict", approval_above="0", approvers={"at_least": 1, "of": ["mia"]})
    mia = operators_key(api, "pipeline", "mia")
    of = release(api, pure("0.2"), "strict", name="large")
    sign_in(steward, mia["Authorization"].removeprefix("Bearer "))
    shown = steward.get(f"{_PAGE}/releases/{of['id']}").text
    assert "You are among those who are asked, but your key does not approve." in shown
    assert "mia has no key that can approve. Until the operator of the service makes one" in shown
    assert "mia cannot approve at present</strong>: mia has the role pipeline, which does not approve" in (
        steward.get(_PAGE).text
    )


def test_the_keys_page_warns_of_keys_that_could_not_approve(strict: Client, steward: Client) -> None:
    alice = make_key(strict, "steward", "alice")
    sign_in(steward, alice["Authorization"].removeprefix("Bearer "))
    fields = {"name": "bob", "role": "approver", "accounts": "", "expires": ""}
    refused = submit(steward, "/keys", "/keys", **fields)
    assert refused.status_code == 422
    assert "This key could not approve" in refused.text
    assert "It would not be a key with which bob can approve for strict: alice is not among" in refused.text
    assert "python -m service keys create --role approver --name bob" in refused.text
    assert "bob" not in [key["name"] for key in json_of(strict.get("/v1/keys"))["items"]]
    again = {name: hidden(refused.text, name) for name in ("csrf", "once", "nevertheless", *fields)}
    made = steward.post("/keys", data=again)
    assert "Its approvals are refused for strict" in made.text
    assert "no approvals for strict" in made.text
    operators_key(strict, "approver", "carol")
    carol = next(key for key in json_of(strict.get("/v1/keys"))["items"] if key["name"] == "carol")
    assert carol["not_approver_of"] == []
    rotate = f"/keys/{carol['id']}/rotate"
    refused = submit(steward, "/keys", rotate, overlap="PT1H")
    assert f"python -m service keys rotate {carol['id']}" in refused.text
    again = {name: hidden(refused.text, name) for name in ("csrf", "once", "nevertheless", "overlap")}
    assert "A key for <strong>carol</strong> was made." in steward.post(rotate, data=again).text


def test_the_maker_of_proposals_sees_those_that_wait_and_those_that_were_rejected(api: Client, steward: Client) -> None:
    open_account(api, "strict", approval_above="0")
    key = operators_key(api, "pipeline", "mia")
    path = f"/v1{_PAGE}/releases"
    bodies = [{"name": f"of {one}", "plan": pure(one)} for one in ("0.2", "0.3")]
    waits, gone = (json_of(api.post(path, json=body, headers=key), 201) for body in bodies)
    json_of(api.post(f"/v1{_PAGE}/releases/{gone['id']}/void", json={"reason": "too exact"}))
    sign_in(steward, key["Authorization"].removeprefix("Bearer "))
    shown = steward.get("/").text
    assert f'{waits["name"]}</a> in strict: <span class="whole">ρ = 0.0' in shown
    assert "of the budget<br>" in shown
    assert "waits for the approval of another person" in shown
    assert "rejected</span> by first-steward" in shown
    assert "“too exact”" in shown
    json_of(api.post(f"{path}/{waits['id']}/approve", headers=operators_key(api, "steward", "dan")))
    shown = steward.get("/").text
    assert f'href="{_PAGE}/releases/{waits["id"]}/draw">Draw it' in shown
    assert "approved</span> by dan" in shown
    json_of(api.post(f"{path}/{waits['id']}/draws", json={"mechanism": "/", "counts": [1]}, headers=key), 201)
    assert waits["name"] not in steward.get("/").text
